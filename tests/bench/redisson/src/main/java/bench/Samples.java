package bench;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.WritableByteChannel;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;

/**
 * When one worker did what: four times for each pair, in nanoseconds, zero where it has not happened.
 *
 * <p>The worker's thread writes and another one may read at any moment. A pair's times are written in their order and
 * read in the opposite one, so that whoever reads a time reads those before it too.
 */
final class Samples {
    static final int ASKED = 0;
    static final int GRANTED = 1;
    static final int LEAVING = 2;
    static final int DONE = 3;
    private static final int TIMES = 4;

    private static final int CHUNK = 4096 * TIMES;
    private static final VarHandle TIME = MethodHandles.arrayElementVarHandle(long[].class);

    private final Queue<long[]> chunks = new ConcurrentLinkedQueue<>();

    // Of the worker's thread alone.
    private long[] chunk;
    private int pair = CHUNK;

    /** Begins the next pair. */
    void next() {
        pair += TIMES;
        if (pair >= CHUNK) {
            chunk = new long[CHUNK];
            chunks.add(chunk);
            pair = 0;
        }
    }

    /** Says that something of this pair happens now. */
    void now(int what) {
        TIME.setRelease(chunk, pair + what, System.nanoTime());
    }

    void writeTo(WritableByteChannel file) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(CHUNK * Long.BYTES).order(ByteOrder.LITTLE_ENDIAN);
        for (long[] c : chunks) {
            bytes.clear();
            for (int p = 0; p < CHUNK; p += TIMES) {
                for (int what = DONE; what >= ASKED; what--) {
                    bytes.putLong((p + what) * Long.BYTES, (long) TIME.getAcquire(c, p + what));
                }
                if (bytes.getLong(p * Long.BYTES) == 0) {
                    break;
                }
                bytes.position((p + TIMES) * Long.BYTES);
            }
            bytes.flip();
            while (bytes.hasRemaining()) {
                file.write(bytes);
            }
        }
    }
}
