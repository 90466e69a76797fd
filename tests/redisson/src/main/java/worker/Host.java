package worker;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.ReadMode;
import org.redisson.config.SentinelServersConfig;
import org.redisson.config.SingleServerConfig;
import org.redisson.config.SubscriptionMode;

/** A RedissonClient and the threads that use it: one program on one host, with connections and a uuid of its own. */
final class Host {
    private final RedissonClient client;
    private final Map<String, Caller> callers = new ConcurrentHashMap<>();

    Host(String redis, long watchdogMillis, String prefix) {
        Config config = new Config();
        if (watchdogMillis > 0) {
            config.setLockWatchdogTimeout(watchdogMillis);
        }
        // The defaults are for programs that do more than lock: 24 connections at the start, 32 threads for them.
        config.setThreads(4).setNettyThreads(4);
        if (redis.startsWith(SENTINEL)) {
            useSentinels(config, redis.substring(SENTINEL.length()));
        } else if (redis.startsWith(CLUSTER)) {
            useCluster(config, redis.substring(CLUSTER.length()));
        } else {
            SingleServerConfig server = config.useSingleServer();
            server.setAddress(redis).setConnectionMinimumIdleSize(2).setConnectionPoolSize(16);
            if (!prefix.isEmpty()) {
                Api.setPrefix(config, server, prefix);
            }
        }
        client = Redisson.create(config);
    }

    private static final String SENTINEL = "redis+sentinel://";
    private static final String CLUSTER = "redis+cluster://";

    /** where: host:port,…/master, as the daemon reads it. */
    private static void useSentinels(Config config, String where) {
        String[] parts = where.split("/");
        SentinelServersConfig servers = config.useSentinelServers();
        for (String address : parts[0].split(",")) {
            servers.addSentinelAddress("redis://" + address);
        }
        servers.setMasterName(parts[1])
            .setReadMode(ReadMode.MASTER)
            .setScanInterval(500)
            .setMasterConnectionMinimumIdleSize(2)
            .setMasterConnectionPoolSize(16);
    }

    /** where: host:port,… of nodes, as the daemon reads it. Channels are sharded where the nodes know that. */
    private static void useCluster(Config config, String where) {
        ClusterServersConfig servers = config.useClusterServers();
        for (String address : where.split(",")) {
            servers.addNodeAddress("redis://" + address);
        }
        servers.setReadMode(ReadMode.MASTER)
            .setSubscriptionMode(SubscriptionMode.MASTER)
            .setScanInterval(500)
            .setMasterConnectionMinimumIdleSize(2)
            .setMasterConnectionPoolSize(16);
    }

    Caller caller(String thread) {
        return callers.computeIfAbsent(thread, name -> new Caller(client, name));
    }

    void shutdown() {
        callers.values().forEach(Caller::shutdown);
        client.shutdown(0, 2, TimeUnit.SECONDS);
    }
}
