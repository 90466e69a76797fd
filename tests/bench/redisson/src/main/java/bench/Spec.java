package bench;

import java.net.URI;
import java.util.List;
import org.json.JSONObject;

/**
 * What the conductor asks of this process.
 *
 * @param contender redisson: locks; the others: permits
 * @param mode pairs, hold or wait
 * @param names pairs: one worker for each; wait: the lock that is waited for
 * @param workNanos pairs: how long a lock is kept
 * @param leaseMillis of Redisson's watchdog
 * @param prefix hold: the locks are prefix0, prefix1, …
 * @param count hold: how many
 * @param records pairs: the file for the samples
 * @param of permits that each semaphore has
 */
record Spec(
        String contender,
        String mode,
        URI redis,
        List<String> names,
        long workNanos,
        long leaseMillis,
        String prefix,
        int count,
        String records,
        int of) {

    static Spec parse(String json) {
        JSONObject o = new JSONObject(json);
        List<String> names =
                o.isNull("names") ? List.of() : o.getJSONArray("names").toList().stream().map(String.class::cast).toList();
        return new Spec(
                o.getString("contender"),
                o.getString("mode"),
                URI.create(o.getString("redis")),
                names,
                o.optLong("work_us") * 1000,
                o.optLong("lease_ms", 30_000),
                o.optString("prefix"),
                o.optInt("count"),
                o.optString("records"),
                o.optInt("of"));
    }
}
