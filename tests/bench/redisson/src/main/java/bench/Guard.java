package bench;

import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** What one thread acquires and releases: a lock, or a permit. */
interface Guard {
    void acquire() throws InterruptedException;

    void release();

    /** Returns a guard of that name, of the kind that the spec asks for. */
    static Guard of(RedissonClient client, Spec spec, String name) {
        return switch (spec.contender()) {
            case "redisson" -> new Lock(client.getLock(name));
            case "redisson-semaphore" -> new Permit(client.getSemaphore(name), spec.of());
            case "redisson-expirable" ->
                new ExpirablePermit(client.getPermitExpirableSemaphore(name), spec.of(), spec.leaseMillis());
            default -> throw new IllegalArgumentException("no such contender: " + spec.contender());
        };
    }

    /** A lock, which Redisson's watchdog renews. */
    final class Lock implements Guard {
        private final RLock lock;

        private Lock(RLock lock) {
            this.lock = lock;
        }

        @Override
        public void acquire() {
            lock.lock();
        }

        @Override
        public void release() {
            lock.unlock();
        }
    }

    /** A permit that is never free again if its process dies. */
    final class Permit implements Guard {
        private final RSemaphore semaphore;

        private Permit(RSemaphore semaphore, int of) {
            this.semaphore = semaphore;
            semaphore.trySetPermits(of);
        }

        @Override
        public void acquire() throws InterruptedException {
            semaphore.acquire();
        }

        @Override
        public void release() {
            semaphore.release();
        }
    }

    /** A permit that ends with its lease. */
    final class ExpirablePermit implements Guard {
        private final RPermitExpirableSemaphore semaphore;
        private final long leaseMillis;
        private String id;

        private ExpirablePermit(RPermitExpirableSemaphore semaphore, int of, long leaseMillis) {
            this.semaphore = semaphore;
            this.leaseMillis = leaseMillis;
            semaphore.trySetPermits(of);
        }

        @Override
        public void acquire() throws InterruptedException {
            id = semaphore.acquire(leaseMillis, TimeUnit.MILLISECONDS);
        }

        @Override
        public void release() {
            semaphore.release(id);
        }
    }
}
