package bench;

/** How many acquires and releases failed, and how the first one did. */
final class Failures {
    private long count;
    private String first = "";

    synchronized void add(Throwable e) {
        if (count++ == 0) {
            first = e.toString();
        }
    }

    synchronized Event done() {
        return new Event("done").with("errors", count).with("first_error", first);
    }
}
