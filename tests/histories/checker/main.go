// Checks a history of clients of a replicated group (../README.md has its format) with Porcupine: is
// there an order of all operations, within the times of each, that one append-only log a queue
// could have given? Prints what it found as JSON; ends with 1 for a history that is not.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// operation is a line of the history. Offset -1: no answer. Ids: what a read returned. Whole: a read of
// all that there is. Times are nanoseconds of one clock.
type operation struct {
	Op     string   `json:"op"`
	Client int      `json:"client"`
	Queue  string   `json:"queue"`
	Group  string   `json:"group"`
	ID     string   `json:"id"`
	Offset int      `json:"offset"`
	IDs    []string `json:"ids"`
	Whole  bool     `json:"whole"`
	Broker int      `json:"broker"`
	Call   int64    `json:"call"`
	Return int64    `json:"return"`
}

// never: when an operation without an answer ends.
const never = math.MaxInt64

// entry is one message of a log, a list that shares its beginning with other states. jump leads to an
// entry further down, so that a place is found in a few steps.
type entry struct {
	id    string
	place int
	below *entry
	jump  *entry
	hash  uint64
}

func (e *entry) size() int {
	if e == nil {
		return 0
	}
	return e.place + 1
}

func (e *entry) put(id string) *entry {
	made := &entry{id: id, place: e.size(), below: e, jump: e}
	sum := fnv.New64a()
	if e != nil {
		fmt.Fprintf(sum, "%x ", e.hash)
		if j := e.jump; j != nil && j.jump != nil && e.place-j.place == j.place-j.jump.place {
			made.jump = j.jump
		}
	}
	sum.Write([]byte(id))
	made.hash = sum.Sum64()
	return made
}

func (e *entry) at(place int) string {
	for e != nil && e.place != place {
		if e.jump != nil && e.jump.place >= place {
			e = e.jump
		} else {
			e = e.below
		}
	}
	if e == nil {
		return ""
	}
	return e.id
}

func same(a, b interface{}) bool {
	x, y := a.(*entry), b.(*entry)
	return x.size() == y.size() && (x == nil || x.hash == y.hash)
}

func split(history []porcupine.Operation, key func(operation) string) [][]porcupine.Operation {
	found, order := map[string][]porcupine.Operation{}, []string{}
	for _, each := range history {
		name := key(each.Input.(operation))
		if _, known := found[name]; !known {
			order = append(order, name)
		}
		found[name] = append(found[name], each)
	}
	parts := [][]porcupine.Operation{}
	for _, name := range order {
		parts = append(parts, found[name])
	}
	return parts
}

// logs: a send puts its message at the end, and its answer says where; reads return what is there.
var logs = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		return split(history, func(o operation) string { return o.Queue })
	},
	Init: func() interface{} { return (*entry)(nil) },
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		log, o := state.(*entry), input.(operation)
		switch o.Op {
		case "send":
			if log.size() != o.Offset {
				return false, state
			}
			return true, log.put(o.ID)
		case "end":
			return log.size() == o.Offset, state
		}
		if o.Offset+len(o.IDs) > log.size() || o.Whole && len(o.IDs) != log.size() {
			return false, state
		}
		for i, id := range o.IDs {
			if log.at(o.Offset+i) != id {
				return false, state
			}
		}
		return true, state
	},
	Equal: same,
}

// commits: nobody is told that a group is further than it was said to be before. A failover may take it
// back, and a slave that lacks messages says where they end.
var commits = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		return split(history, func(o operation) string { return o.Group + " " + o.Queue })
	},
	Init: func() interface{} { return 0 },
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		o, furthest := input.(operation), state.(int)
		if o.Op == "commit" {
			return true, max(furthest, o.Offset)
		}
		return o.Offset <= furthest, state
	},
}

// report is what is printed.
type report struct {
	OK         bool           `json:"ok"`
	Operations map[string]int `json:"operations"`
	Unanswered int            `json:"unanswered"`
	Queues     int            `json:"queues"`
	Logs       string         `json:"logs"`
	Commits    string         `json:"commits"`
	Problems   []string       `json:"problems"`
	Seconds    float64        `json:"seconds"`
}

func (r *report) say(format string, values ...interface{}) {
	if len(r.Problems) < 20 {
		r.Problems = append(r.Problems, fmt.Sprintf(format, values...))
	}
}

func read(path string) ([]operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 1<<20), 1<<28)
	found := []operation{}
	for lines.Scan() {
		one := operation{Offset: -1, Return: never}
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(found)+1, err)
		}
		found = append(found, one)
	}
	return found, lines.Err()
}

// places says where reads have seen each message, and in words what no log can give: Porcupine finds
// the same, and says only that there is no order.
func places(history []operation, out *report) map[string]int {
	seen, content := map[string]int{}, map[string]string{}
	look := func(o operation, place int, id string) {
		at := fmt.Sprintf("%s at %d", o.Queue, place)
		if before, known := content[at]; known && before != id {
			out.say("%s: %s and %s (broker %d)", at, before, id, o.Broker)
		}
		if before, known := seen[id]; known && before != place {
			out.say("%s: %s is at %d, too (broker %d)", at, id, before, o.Broker)
		}
		content[at], seen[id] = id, place
	}
	for _, o := range history {
		if o.Op == "send" && o.Offset >= 0 {
			look(o, o.Offset, o.ID)
		}
		for i, id := range o.IDs {
			look(o, o.Offset+i, id)
		}
	}
	for _, o := range history {
		if !o.Whole {
			continue
		}
		for place := len(o.IDs); ; place++ {
			id, known := content[fmt.Sprintf("%s at %d", o.Queue, place)]
			if !known {
				break
			}
			out.say("%s at %d: %s is lost (broker %d)", o.Queue, place, id, o.Broker)
		}
	}
	return seen
}

func check(history []operation, slack int64, patience time.Duration) report {
	out := report{Operations: map[string]int{}, Problems: []string{}}
	began, seen, queues := time.Now(), places(history, &out), map[string]bool{}
	sends, offsets := []porcupine.Operation{}, []porcupine.Operation{}
	for _, o := range history {
		out.Operations[o.Op]++
		if o.Return == never {
			out.Unanswered++
		}
		switch o.Op {
		case "send":
			if o.Offset < 0 {
				place, known := seen[o.ID]
				if !known {
					continue // all of the queue is read in the end: it never happened
				}
				o.Offset, o.Return = place, never
			}
		case "end":
			o.Call -= slack
		case "commit", "committed":
			offsets = append(offsets, porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: o.Return})
			continue
		}
		queues[o.Queue] = true
		sends = append(sends, porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: o.Return})
	}
	out.Queues = len(queues)
	out.Logs = string(porcupine.CheckOperationsTimeout(logs, sends, patience))
	out.Commits = string(porcupine.CheckOperationsTimeout(commits, offsets, patience))
	out.OK = out.Logs == string(porcupine.Ok) && out.Commits == string(porcupine.Ok) && len(out.Problems) == 0
	out.Seconds = time.Since(began).Seconds()
	return out
}

func main() {
	slack := flag.Duration("slack", 0, "how late the end of a queue may be that a master tells")
	patience := flag.Duration("patience", 10*time.Minute, "for each of the two checks")
	flag.Parse()
	history, err := read(flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	out := check(history, slack.Nanoseconds(), *patience)
	text, _ := json.MarshalIndent(out, "", "  ")
	fmt.Println(string(text))
	if !out.OK {
		os.Exit(1)
	}
}
