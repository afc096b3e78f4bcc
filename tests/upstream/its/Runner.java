import java.util.HashSet;
import java.util.Set;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs the test classes that it is given, one after the other, and prints a line a test: PASSED, FAILED or IGNORED. */
public class Runner {
    public static void main(String[] classes) throws Exception {
        JUnitCore core = new JUnitCore();
        core.addListener(new RunListener() {
            private final Set<String> failed = new HashSet<>();

            @Override public void testFailure(Failure failure) {
                failed.add(failure.getDescription().getDisplayName());
                System.out.println("FAILED " + name(failure.getDescription()) + " " + failure.getException());
            }

            @Override public void testIgnored(Description test) {
                System.out.println("IGNORED " + name(test));
            }

            @Override public void testFinished(Description test) {
                if (!failed.contains(test.getDisplayName())) System.out.println("PASSED " + name(test));
            }
        });
        for (String each : classes) core.run(Class.forName(each));
        System.exit(0);  // clients have threads of their own
    }

    private static String name(Description test) {
        return test.getTestClass().getSimpleName() + "." + test.getMethodName();
    }
}
