package worker;

import java.time.Duration;
import java.util.OptionalLong;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.json.JSONArray;
import org.json.JSONObject;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/** A thread of a host. It carries out its commands one after the other and owns what it locks. */
final class Caller {
    private final RedissonClient client;
    private final ExecutorService thread;
    private volatile Poll poll; // the last one

    // Guarded by this.
    private Thread busy; // carries out a command that is not a poll; null: none

    Caller(RedissonClient client, String name) {
        this.client = client;
        thread = Executors.newSingleThreadExecutor(task -> {
            Thread t = new Thread(task, name);
            t.setDaemon(true);
            return t;
        });
    }

    /** Carries out a command when all before it are done, and sends its answer. */
    void submit(Command c) {
        if (c.verb().equals("poll")) {
            Poll p = new Poll(c);
            poll = p;
            thread.execute(() -> Worker.answer(c, () -> p.run(Lockable.of(client, c))));
            return;
        }
        thread.execute(() -> Worker.answer(c, () -> {
            begin();
            try {
                return carryOut(c);
            } finally {
                end();
            }
        }));
    }

    private synchronized void begin() {
        busy = Thread.currentThread();
    }

    private synchronized void end() {
        busy = null;
        Thread.interrupted(); // it was interrupted too late
    }

    /** Interrupts the command that is carried out. */
    synchronized void interrupt() {
        if (busy != null) {
            busy.interrupt();
        }
    }

    /** Reports whether the thread stands still within a command: it waits for a lock, or for an answer of Redis. */
    synchronized boolean isWaiting() {
        return busy != null
                && (busy.getState() == Thread.State.WAITING || busy.getState() == Thread.State.TIMED_WAITING);
    }

    /** Ends the poll that is under way. */
    void stop() {
        Poll p = poll;
        if (p != null) {
            p.stop();
        }
    }

    void shutdown() {
        stop();
        thread.shutdownNow();
    }

    private JSONObject carryOut(Command c) throws InterruptedException {
        return switch (c.verb()) {
            case "lock" -> {
                OptionalLong token = Lockable.of(client, c).acquire(c.waitMillis(), c.leaseMillis());
                yield token.isPresent() ? new JSONObject().put("token", token.getAsLong()) : refused(c);
            }
            case "unlock" -> {
                Lockable.of(client, c).release();
                yield new JSONObject();
            }
            case "force_unlock" -> new JSONObject().put("yes", Lockable.lock(client, c).forceUnlock());
            case "look" -> look(Lockable.lock(client, c));
            case "get_token" -> new JSONObject().put("token", client.getFencedLock(c.name()).getToken());
            case "hammer" -> hammer(c);
            case "set_bucket" -> {
                client.getBucket(c.name(), StringCodec.INSTANCE).set("a value");
                yield new JSONObject();
            }
            case "put_map" -> new JSONObject()
                    .put("yes", client.getMap(c.name(), StringCodec.INSTANCE).fastPut("a key", "a value"));
            case "set_rate" -> new JSONObject()
                    .put(
                            "yes",
                            client.getRateLimiter(c.name())
                                    .trySetRate(RateType.OVERALL, c.count(), Duration.ofMinutes(10)));
            case "acquire_rate" -> new JSONObject().put("yes", client.getRateLimiter(c.name()).tryAcquire());
            case "delete" -> new JSONObject().put("yes", client.getKeys().delete(c.name()) == 1);
            case "set_permits" -> new JSONObject().put("yes", client.getSemaphore(c.name()).trySetPermits(c.count()));
            default -> throw new IllegalArgumentException("no such command: " + c.verb());
        };
    }

    private static JSONObject refused(Command c) {
        return Worker.error(c.waitMillis() == 0 ? "held" : "timeout", "not granted");
    }

    private static JSONObject look(RLock lock) {
        return new JSONObject()
                .put("yes", lock.isLocked())
                .put("mine", lock.isHeldByCurrentThread())
                .put("entries", lock.getHoldCount())
                .put("ttl_ms", lock.remainTimeToLive());
    }

    /**
     * Adds one to a counter again and again, by reading it and writing what it read plus one: without mutual exclusion
     * additions are lost.
     */
    private JSONObject hammer(Command c) throws InterruptedException {
        Lockable lock = Lockable.of(client, c);
        RBucket<String> counter = client.getBucket(c.key(), StringCodec.INSTANCE);
        JSONArray rounds = new JSONArray();
        for (int i = 0; i < c.count(); i++) {
            OptionalLong token = lock.acquire(c.waitMillis(), c.leaseMillis());
            if (token.isEmpty()) {
                return refused(c);
            }
            String read = counter.get();
            int value = read == null ? 0 : Integer.parseInt(read);
            counter.set(Integer.toString(value + 1));
            rounds.put(new JSONObject().put("value", value).put("token", token.getAsLong()));
            lock.release();
        }
        return new JSONObject().put("rounds", rounds);
    }
}
