package bench;

import org.json.JSONObject;

/** A line to the conductor. */
final class Event {
    private final JSONObject fields = new JSONObject();

    Event(String name) {
        fields.put("event", name);
    }

    Event with(String key, Object value) {
        fields.put(key, value);
        return this;
    }

    void send() {
        synchronized (System.out) {
            System.out.println(fields);
            System.out.flush();
        }
    }
}
