package migrate

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestIntervals(t *testing.T) {
	at := func(second int) string { return time.Unix(int64(second), 0).UTC().Format(time.RFC3339Nano) }
	line := func(pod string, from, to, code int) string {
		return fmt.Sprintf(`{"user":{"username":"u","extra":{%q:[%q]}},"responseStatus":{"code":%d},"requestReceivedTimestamp":%q,"stageTimestamp":%q}`+"\n",
			podUID, pod, code, at(from), at(to))
	}
	for _, c := range []struct {
		why     string
		log     string
		pods    string
		overlap bool
	}{
		{"one after the other", line("a", 1, 2, 200) + line("a", 5, 6, 201) + line("b", 7, 8, 200), "a b", false},
		{"one within the other", line("a", 1, 2, 200) + line("b", 3, 3, 200) + line("a", 5, 6, 200), "a b", true},
		{"the last answer is late", line("a", 1, 5, 200) + line("b", 4, 6, 200), "a b", true},
		{"the third is in the first", line("a", 1, 2, 200) + line("a", 9, 9, 200) + line("b", 10, 11, 200) + line("c", 8, 8, 200), "a c b", true},
		{"what was refused is no write", line("a", 1, 2, 200) + line("b", 1, 1, 403) + line("b", 3, 4, 200), "a b", false},
		{"before the moment", line("b", 0, 0, 200) + line("a", 1, 2, 200), "a", false},
		{"a line that is not complete", line("a", 1, 2, 200) + `{"user":`, "a", false},
	} {
		all, err := Intervals(strings.NewReader(c.log), time.Unix(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		var pods []string
		for _, i := range all {
			pods = append(pods, i.Pod)
		}
		if got := strings.Join(pods, " "); got != c.pods {
			t.Errorf("%s: %s, want %s", c.why, got, c.pods)
		}
		if _, _, found := Overlap(all); found != c.overlap {
			t.Errorf("%s: overlap %t", c.why, found)
		}
	}
}
