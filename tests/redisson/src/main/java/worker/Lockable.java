package worker;

import java.time.Duration;
import java.util.ArrayList;
import java.util.OptionalLong;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** A lock or a semaphore of Redisson, called as programs call it: a blocking method, by the thread that will own it. */
sealed interface Lockable {
    /**
     * Acquires.
     *
     * @return the token, 0 for objects without tokens; empty if the object was not to be had within the wait
     */
    OptionalLong acquire(long waitMillis, long leaseMillis) throws InterruptedException;

    void release();

    static Lockable of(RedissonClient client, Command c) {
        return switch (c.object()) {
            case "fenced" -> new Fenced(client.getFencedLock(c.name()));
            case "semaphore" -> new Semaphore(client.getSemaphore(c.name()));
            default -> new Plain(lock(client, c));
        };
    }

    /** The command's object, for what every RLock has. */
    static RLock lock(RedissonClient client, Command c) {
        return switch (c.object()) {
            case "lock" -> client.getLock(c.name());
            case "nonreentrant" -> Api.nonReentrantLock(client, c.name());
            case "fenced" -> client.getFencedLock(c.name());
            case "spin" -> client.getSpinLock(c.name());
            case "fair" -> client.getFairLock(c.name());
            case "multi" -> client.getMultiLock(c.names().stream().map(client::getLock).toArray(RLock[]::new));
            case "group" -> client.getMultiLock(c.name(), new ArrayList<>(c.names()));
            case "read" -> client.getReadWriteLock(c.name()).readLock();
            case "write" -> client.getReadWriteLock(c.name()).writeLock();
            default -> throw new IllegalArgumentException("no such lock: " + c.object());
        };
    }

    record Plain(RLock lock) implements Lockable {
        @Override
        public OptionalLong acquire(long waitMillis, long leaseMillis) throws InterruptedException {
            if (waitMillis < 0) {
                // lock() does the same, but cannot be interrupted.
                lock.lockInterruptibly(orWatchdog(leaseMillis), TimeUnit.MILLISECONDS);
                return OptionalLong.of(0);
            }
            boolean granted = waitMillis == 0 && leaseMillis == 0
                    ? lock.tryLock()
                    : lock.tryLock(waitMillis, orWatchdog(leaseMillis), TimeUnit.MILLISECONDS);
            return granted ? OptionalLong.of(0) : OptionalLong.empty();
        }

        @Override
        public void release() {
            lock.unlock();
        }
    }

    record Fenced(RFencedLock lock) implements Lockable {
        @Override
        public OptionalLong acquire(long waitMillis, long leaseMillis) {
            if (waitMillis < 0) {
                return OptionalLong.of(
                        leaseMillis == 0
                                ? lock.lockAndGetToken()
                                : lock.lockAndGetToken(leaseMillis, TimeUnit.MILLISECONDS));
            }
            // tryLockAndGetToken() without arguments waits without limit.
            Long token = lock.tryLockAndGetToken(waitMillis, orWatchdog(leaseMillis), TimeUnit.MILLISECONDS);
            return token == null ? OptionalLong.empty() : OptionalLong.of(token);
        }

        @Override
        public void release() {
            lock.unlock();
        }
    }

    record Semaphore(RSemaphore semaphore) implements Lockable {
        @Override
        public OptionalLong acquire(long waitMillis, long leaseMillis) throws InterruptedException {
            if (waitMillis < 0) {
                semaphore.acquire();
                return OptionalLong.of(0);
            }
            return semaphore.tryAcquire(Duration.ofMillis(waitMillis)) ? OptionalLong.of(0) : OptionalLong.empty();
        }

        @Override
        public void release() {
            semaphore.release();
        }
    }

    private static long orWatchdog(long leaseMillis) {
        return leaseMillis == 0 ? -1 : leaseMillis;
    }
}
