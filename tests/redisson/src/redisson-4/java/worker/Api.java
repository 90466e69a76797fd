package worker;

import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.redisson.config.NameMapper;
import org.redisson.config.SingleServerConfig;

/** What differs between the major versions of Redisson: here version 4. */
final class Api {
    private Api() {}

    /** The version of the jar, as its manifest has it. */
    static String version() {
        return Redisson.class.getPackage().getImplementationVersion();
    }

    /** Puts a prefix before the name of each object, as programs do that share a Redis. */
    static void setPrefix(Config config, SingleServerConfig server, String prefix) {
        config.setNameMapper(new Prefix(prefix));
    }

    static RLock nonReentrantLock(RedissonClient client, String name) {
        return client.getNonReentrantLock(name);
    }

    private record Prefix(String prefix) implements NameMapper {
        @Override
        public String map(String name) {
            return prefix + name;
        }

        @Override
        public String unmap(String name) {
            return name.substring(prefix.length());
        }
    }
}
