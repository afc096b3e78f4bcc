import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;

/**
 * Runs another program of this folder, and ends when its main thread fails. Without it the threads of an official
 * client keep the machine alive, and whoever reads its output waits for ever.
 *
 * Ends CLASS ARGS...   exit code 1, and the trace on stderr, where it fails
 */
public class Ends {
    public static void main(String[] a) throws ReflectiveOperationException {
        try {
            Class.forName(a[0]).getMethod("main", String[].class).invoke(null, (Object) Arrays.copyOfRange(a, 1, a.length));
        } catch (InvocationTargetException failed) {
            failed.getCause().printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }
}
