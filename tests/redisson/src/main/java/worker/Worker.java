package worker;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import org.json.JSONObject;

/**
 * A process of the tests that locks with Redisson, as many hosts at once.
 *
 * <p>It reads one JSON command a line and writes one JSON answer a line with the command's number. Each command names a
 * RedissonClient and a thread of it. Commands of one thread are carried out one after the other, those of different
 * threads at the same time.
 */
public final class Worker {
    private static final Map<String, Host> HOSTS = new ConcurrentHashMap<>();

    private Worker() {}

    public static void main(String[] args) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            begin(Command.parse(line));
        }
        Runtime.getRuntime().halt(0); // the tests are over
    }

    private static void begin(Command c) {
        switch (c.verb()) {
            case "connect" -> background(c, () -> {
                Host host = new Host(c.redis(), c.watchdogMillis(), c.prefix());
                HOSTS.put(c.client(), host);
                return new JSONObject().put("msg", Api.version());
            });
            case "disconnect" -> background(c, () -> {
                HOSTS.remove(c.client()).shutdown();
                return new JSONObject();
            });
            case "stop" -> answer(c, () -> {
                HOSTS.get(c.client()).caller(c.thread()).stop();
                return new JSONObject();
            });
            case "interrupt" -> answer(c, () -> {
                HOSTS.get(c.client()).caller(c.thread()).interrupt();
                return new JSONObject();
            });
            case "is_waiting" -> answer(c, () -> new JSONObject()
                    .put("yes", HOSTS.get(c.client()).caller(c.thread()).isWaiting()));
            default -> HOSTS.get(c.client()).caller(c.thread()).submit(c);
        }
    }

    private static void background(Command c, Callable<JSONObject> work) {
        Thread t = new Thread(() -> answer(c, work), c.verb());
        t.setDaemon(true);
        t.start();
    }

    /** Does the work and sends its result or its exception. */
    static void answer(Command c, Callable<JSONObject> work) {
        JSONObject answer;
        try {
            answer = work.call();
        } catch (IllegalMonitorStateException e) {
            answer = error("not_held", e.toString());
        } catch (InterruptedException e) {
            answer = error("interrupted", e.toString());
        } catch (Exception e) {
            answer = error("other", e.toString());
        }
        answer.put("n", c.n());
        synchronized (System.out) {
            System.out.println(answer);
            System.out.flush();
        }
    }

    static JSONObject error(String code, String msg) {
        return new JSONObject().put("err", code).put("msg", msg);
    }
}
