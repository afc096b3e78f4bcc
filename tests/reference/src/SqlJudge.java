import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.*;

/**
 * What upstream makes of SQL92 filters, as its broker asks it: FilterFactory compiles, MessageEvaluationContext looks properties up.
 * args: FILE, a case a line: EXPRESSION TAB PROPERTIES [TAB PROPERTIES ...], each the hexadecimal of UTF-8 bytes; properties encoded as in a record.
 * Prints a line a case, a word an item: "illegal" alone when the expression does not compile, else true, false, null or error for each
 * properties; error: the evaluation threw, which the broker takes for no match.
 */
public class SqlJudge {
    static String text(String hex) { return new String(HexFormat.of().parseHex(hex), StandardCharsets.UTF_8); }

    static String verdict(Expression e, Map<String, String> properties) {
        try {
            Object found = e.evaluate(new MessageEvaluationContext(properties));
            return found == null ? "null" : found instanceof Boolean ? found.toString() : "other";
        } catch (Throwable t) { return "error"; }
    }

    public static void main(String[] a) throws Exception {
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line : Files.readAllLines(Paths.get(a[0]))) {
            String[] parts = line.split("\t", -1);
            Expression e;
            try { e = FilterFactory.INSTANCE.get("SQL92").compile(text(parts[0])); } catch (Throwable t) { out.println("illegal"); continue; }
            StringBuilder said = new StringBuilder("legal");
            for (int i = 1; i < parts.length; i++) said.append(' ').append(verdict(e, MessageDecoder.string2messageProperties(text(parts[i]))));
            out.println(said);
        }
        out.flush();
    }
}
