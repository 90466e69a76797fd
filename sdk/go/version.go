package locksidecar

// Version of this package, and of the sidecar and the Python package of the same
// release. The release artefacts are named after it.
const Version = "0.1.0"
