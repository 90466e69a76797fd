package worker;

import java.util.List;
import org.json.JSONArray;
import org.json.JSONObject;

/**
 * One line from the test. What it leaves out is 0 or empty.
 *
 * @param n number of the command; its answer has the same
 * @param verb what to do
 * @param client name of the RedissonClient that does it
 * @param thread name of the client's thread that does it: Redisson's locks belong to threads
 * @param object kind of the object; "lock", the default, is an RLock
 * @param name of the object
 * @param names multi: of its locks; group: of its values
 * @param waitMillis how long to wait for the lock; 0: one try; below 0: without limit
 * @param leaseMillis how long to hold the lock; 0: until the unlock, Redisson's watchdog renews
 * @param forMillis how long to poll
 * @param pauseMillis poll: between a grant's release and the next try
 * @param count hammer: rounds; poll: ends after so many grants, or does not if this is 0; set_permits, set_rate: permits
 * @param key hammer: key of the counter
 * @param redis connect: address; of Sentinels and of a Cluster as the daemon has it
 * @param watchdogMillis connect: lockWatchdogTimeout; 0: Redisson's default
 * @param prefix connect: what a NameMapper puts before each name; empty: there is none
 */
record Command(
        long n,
        String verb,
        String client,
        String thread,
        String object,
        String name,
        List<String> names,
        long waitMillis,
        long leaseMillis,
        long forMillis,
        long pauseMillis,
        int count,
        String key,
        String redis,
        long watchdogMillis,
        String prefix) {

    static Command parse(String line) {
        JSONObject o = new JSONObject(line);
        JSONArray names = o.optJSONArray("names", new JSONArray());
        return new Command(
                o.getLong("n"),
                o.getString("do"),
                o.getString("client"),
                o.optString("thread"),
                o.optString("object", "lock"),
                o.optString("name"),
                names.toList().stream().map(String.class::cast).toList(),
                o.optLong("wait_ms"),
                o.optLong("lease_ms"),
                o.optLong("for_ms"),
                o.optLong("pause_ms"),
                o.optInt("count"),
                o.optString("key"),
                o.optString("redis"),
                o.optLong("watchdog_ms"),
                o.optString("prefix"));
    }
}
