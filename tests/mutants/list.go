package main

import "slices"

// mutants are all of them. A change that no client, no host and no operator can notice
// breaks no rule, and has no place here.
var mutants = slices.Concat(scriptMutants, storeMutants, pipelineMutants, topologyMutants, locktableMutants, permitsMutants, rwMutants, explorationMutants, stateMutants,
	sidecarMutants, protocolMutants, rawioMutants, sdkGoMutants, commandMutants)

// test is the check that is one test.
func test(pkg, name string) check { return check{pkg, "^" + name + "$"} }
