import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.file.*;
import java.util.HexFormat;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * What upstream makes of frames: args: FILE, the hexadecimal of a frame a line. Prints a line each: the frame as RemotingCommand.encode writes
 * what RemotingCommand.decode read, or "refused".
 */
public class WireJudge {
    static String again(String hex) {
        try {
            ByteBuffer in = ByteBuffer.wrap(HexFormat.of().parseHex(hex));
            in.getInt();   // NettyDecoder strips it
            ByteBuffer out = RemotingCommand.decode(in).encode();
            return HexFormat.of().formatHex(out.array(), 0, out.limit());
        } catch (Throwable t) { return "refused"; }
    }

    public static void main(String[] a) throws Exception {
        PrintStream said = new PrintStream(System.out, false, "UTF-8");
        for (String line : Files.readAllLines(Paths.get(a[0]))) said.println("= " + again(line));
        said.flush();
    }
}
