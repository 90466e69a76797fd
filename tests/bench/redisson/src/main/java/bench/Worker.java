package bench;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.function.IntFunction;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * A process of the benchmark that locks with Redisson.
 *
 * <p>It has one client with Redisson's defaults, and RLocks that Redisson's watchdog renews, or semaphores. The conductor writes a line
 * of JSON that says what to do, then "go", then "stop"; the answers are lines of JSON too.
 */
public final class Worker {
    private static final int WARMUP_PAIRS = 20;
    private static final int TAKERS = 64;
    private static final long RETRY_NANOS = 1_000_000;

    private final RedissonClient client;
    private final Failures failures = new Failures();
    private final CountDownLatch go = new CountDownLatch(1);
    private volatile boolean stopping;

    private Worker(RedissonClient client) {
        this.client = client;
    }

    public static void main(String[] args) {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try {
            Spec spec = Spec.parse(in.readLine());
            Worker worker = new Worker(Redisson.create(config(spec)));
            switch (spec.mode()) {
                case "pairs" -> worker.pairs(spec, in);
                case "hold" -> worker.hold(spec, in);
                case "wait" -> worker.waitForOne(spec, in);
                default -> throw new IllegalArgumentException("no such mode: " + spec.mode());
            }
            worker.failures.done().send();
        } catch (Exception e) {
            e.printStackTrace();
            new Event("error").with("msg", e.toString()).send();
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0);
    }

    private static Config config(Spec spec) {
        Config config = new Config();
        config.setLockWatchdogTimeout(spec.leaseMillis());
        String database = spec.redis().getPath().replaceFirst("^/", "");
        config.useSingleServer()
                .setAddress("redis://" + spec.redis().getAuthority())
                .setDatabase(database.isEmpty() ? 0 : Integer.parseInt(database));
        return config;
    }

    private void pairs(Spec spec, BufferedReader in) throws IOException, InterruptedException {
        List<Samples> samples = new ArrayList<>();
        for (int i = 0; i < spec.names().size(); i++) {
            samples.add(new Samples());
        }
        start(spec, samples.size(), WARMUP_PAIRS, i -> () -> pairs(Guard.of(client, spec, spec.names().get(i)), spec.workNanos(), samples.get(i)));

        begin(in);
        awaitStop(in);
        stopping = true;
        try (FileChannel file = FileChannel.open(
                Path.of(spec.records()),
                StandardOpenOption.CREATE,
                StandardOpenOption.WRITE,
                StandardOpenOption.TRUNCATE_EXISTING)) {
            for (Samples s : samples) {
                s.writeTo(file);
            }
        }
    }

    private void pairs(Guard lock, long workNanos, Samples samples) {
        while (!stopping) {
            samples.next();
            samples.now(Samples.ASKED);
            while (!locked(lock)) {
                pause(RETRY_NANOS);
                samples.now(Samples.ASKED);
            }
            samples.now(Samples.GRANTED);
            if (workNanos > 0) {
                pause(workNanos);
            }
            samples.now(Samples.LEAVING);
            unlock(lock);
            samples.now(Samples.DONE);
        }
    }

    private void hold(Spec spec, BufferedReader in) throws IOException, InterruptedException {
        int takers = Math.min(TAKERS, spec.count());
        AtomicInteger held = new AtomicInteger();
        CountDownLatch taken = new CountDownLatch(takers);
        // No warm-up: each time that a client's last lock is released and another one taken within a third of the lease,
        // Redisson begins one more series of renewals beside those that go on. Here there shall be one.
        start(spec, takers, 0, i -> () -> {
            for (int n = i; n < spec.count(); n += takers) {
                if (locked(Guard.of(client, spec, spec.prefix() + n))) {
                    held.incrementAndGet();
                }
            }
            taken.countDown();
            // A lock belongs to its thread: it has to stay.
            awaitForever();
        });

        begin(in);
        taken.await();
        new Event("held").with("count", held.get()).send();
        awaitStop(in);
    }

    private void waitForOne(Spec spec, BufferedReader in) throws IOException, InterruptedException {
        start(spec, 1, WARMUP_PAIRS, i -> () -> {
            Guard lock = Guard.of(client, spec, spec.names().get(0));
            while (!locked(lock)) {
                pause(RETRY_NANOS);
            }
            new Event("granted").with("at", System.nanoTime()).send();
            unlock(lock);
            awaitForever();
        });

        begin(in);
        awaitStop(in);
    }

    /** Starts n workers and returns when all are warm; they go on when all may begin. */
    private void start(Spec spec, int n, int warmup, IntFunction<Runnable> work) throws InterruptedException {
        CountDownLatch warm = new CountDownLatch(n);
        AtomicReference<RuntimeException> failure = new AtomicReference<>();
        for (int i = 0; i < n; i++) {
            Runnable w = work.apply(i);
            Guard lock = Guard.of(client, spec, "warm:" + ProcessHandle.current().pid() + ":" + i);
            Thread thread = new Thread(() -> {
                try {
                    for (int pair = 0; pair < warmup; pair++) {
                        lock.acquire();
                        lock.release();
                    }
                } catch (RuntimeException e) {
                    failure.set(e);
                    return;
                } catch (InterruptedException e) {
                    failure.set(new IllegalStateException(e));
                    return;
                } finally {
                    warm.countDown();
                }
                await(go);
                w.run();
            }, "worker-" + i);
            thread.setDaemon(true);
            thread.start();
        }
        warm.await();
        if (failure.get() != null) {
            throw failure.get();
        }
    }

    private void begin(BufferedReader in) throws IOException {
        new Event("ready").send();
        String line = in.readLine();
        if (!"go".equals(line)) {
            throw new IllegalStateException("go was expected, not " + line);
        }
        go.countDown();
    }

    private static void awaitStop(BufferedReader in) throws IOException {
        String line = in.readLine();
        if (line != null && !line.equals("stop")) {
            throw new IllegalStateException("stop was expected, not " + line);
        }
    }

    private boolean locked(Guard lock) {
        try {
            lock.acquire();
            return true;
        } catch (RuntimeException e) {
            failures.add(e);
            return false;
        } catch (InterruptedException e) {
            throw new IllegalStateException("nothing interrupts a worker", e);
        }
    }

    private void unlock(Guard lock) {
        try {
            lock.release();
        } catch (RuntimeException e) {
            failures.add(e);
        }
    }

    /** Thread.sleep knows only whole milliseconds; a park may end early. */
    private static void pause(long nanos) {
        long end = System.nanoTime() + nanos;
        for (long left = nanos; left > 0; left = end - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }

    private static void awaitForever() {
        await(new CountDownLatch(1));
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException e) {
            throw new IllegalStateException("nobody interrupts a worker", e);
        }
    }
}
