package worker;

import java.util.OptionalLong;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.json.JSONArray;
import org.json.JSONObject;
import org.redisson.client.RedisException;

/** Acquires and releases, tries again a millisecond after a try in vain, and counts how often it is granted. */
final class Poll {
    private static final long PAUSE_NANOS = 1_000_000;
    private static final ScheduledExecutorService TIMER = Executors.newSingleThreadScheduledExecutor(task -> {
        Thread t = new Thread(task, "timer");
        t.setDaemon(true);
        return t;
    });

    private final Command command;

    // Guarded by this.
    private boolean stopped;
    private Thread waiting; // may be interrupted

    Poll(Command command) {
        this.command = command;
    }

    /** Ends the poll, and the wait within it. */
    synchronized void stop() {
        stopped = true;
        if (waiting != null) {
            waiting.interrupt();
        }
    }

    JSONObject run(Lockable lock) throws InterruptedException {
        long tries = 0;
        long grants = 0;
        long longest = 0;
        JSONArray waits = new JSONArray();
        long asked = System.nanoTime();
        Future<?> end = TIMER.schedule(this::stop, command.forMillis(), TimeUnit.MILLISECONDS);
        try {
            while ((command.count() == 0 || grants < command.count()) && beginWait()) {
                OptionalLong token;
                try {
                    tries++;
                    token = lock.acquire(command.waitMillis(), command.leaseMillis());
                } catch (InterruptedException | RedisException e) {
                    if (stoppedBy(e)) {
                        break;
                    }
                    throw e;
                } finally {
                    endWait();
                }
                if (token.isEmpty()) {
                    LockSupport.parkNanos(PAUSE_NANOS);
                    continue;
                }
                long wait = System.nanoTime() - asked;
                longest = Math.max(longest, wait);
                waits.put(wait);
                grants++;
                lock.release();
                TimeUnit.MILLISECONDS.sleep(command.pauseMillis());
                asked = System.nanoTime();
            }
        } finally {
            end.cancel(false);
        }
        longest = Math.max(longest, System.nanoTime() - asked);
        return new JSONObject().put("tries", tries).put("grants", grants).put("longest_ns", longest).put("waits", waits);
    }

    private synchronized boolean beginWait() {
        if (!stopped && command.waitMillis() != 0) {
            waiting = Thread.currentThread();
        }
        return !stopped;
    }

    /** Tells an interrupted wait, which some methods of Redisson report in an exception of theirs. */
    private synchronized boolean stoppedBy(Exception e) {
        return stopped && (e instanceof InterruptedException || e.getCause() instanceof InterruptedException);
    }

    private synchronized void endWait() {
        waiting = null;
        Thread.interrupted(); // it was interrupted too late
    }
}
