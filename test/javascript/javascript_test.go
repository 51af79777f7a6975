package javascript_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/metacontroller-solo/solo/test/javascript"
)

// run runs code to its end.
func run(t *testing.T, code string, change ...func(*javascript.Options)) (stdout, stderr string, exit int) {
	t.Helper()
	var out, errs bytes.Buffer
	options := javascript.Options{Code: code, Stdout: &out, Stderr: &errs}
	for _, f := range change {
		f(&options)
	}
	exit, err := javascript.Run(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), exit
}

func TestPrograms(t *testing.T) {
	cases := []struct {
		reason, code   string
		stdout, stderr string
		exit           int
	}{
		{"text and objects", `console.log('a', 1, { b: [true, null] })`, "a 1 {\"b\":[true,null]}\n", "", 0},
		{"the other stream", `console.error('a')`, "", "a\n", 0},
		{"arguments and environment", `console.log(process.argv.slice(2).join(), process.env.NAME, process.env.NOTHING)`, "x,y ada undefined\n", "", 0},
		{"what newer programs are written in", `const { a = 1, ...rest } = { b: 2, c: 3 }; console.log(a, rest, rest?.d ?? 'none', [...'ab'].map((x) => x + a))`,
			"1 {\"b\":2,\"c\":3} none [\"a1\",\"b1\"]\n", "", 0},
		{"timers in their order", `setTimeout(() => console.log('later'), 20); setTimeout(console.log, 1, 'x'); console.log('now')`, "now\nx\nlater\n", "", 0},
		{"a timer that is cleared", `clearTimeout(setTimeout(() => console.log('never'), 60000))`, "", "", 0},
		{"an interval that clears itself", `let n = 0; const i = setInterval(() => { console.log(++n); if (n === 2) clearInterval(i); }, 1)`, "1\n2\n", "", 0},
		{"exit ends all", `setTimeout(() => {}, 60000); process.exit(3); console.log('never')`, "", "", 3},
		{"an error that nobody catches", "\nthrow new Error('broken')", "", "Uncaught Error: broken", 1},
		{"one in a callback", `setTimeout(() => { throw new TypeError('later') }, 1)`, "", "Uncaught TypeError: later", 1},
		{"text that is no program", `const = 1`, "", "SyntaxError", 1},
		{"promises", `Promise.resolve(1).then((v) => console.log(v + 1)); (async () => console.log(await 5))()`, "2\n5\n", "", 0},
		{"hash", `console.log(require('node:crypto').createHash('sha256').update('a').update('b').digest('hex').slice(0, 10))`, "fb8e20fc2e\n", "", 0},
		{"a module that is not there", `require('express')`, "", "express", 1},
		{"an error that is caught", `try { require('./nothing.js') } catch (error) { console.log(error.message.includes('nothing.js')) }`, "true\n", "", 0},
	}
	for _, c := range cases {
		stdout, stderr, exit := run(t, c.code, func(o *javascript.Options) {
			o.Args, o.Env = []string{"x", "y"}, map[string]string{"NAME": "ada"}
		})
		if stdout != c.stdout || !strings.Contains(stderr, c.stderr) || (c.stderr == "") != (stderr == "") || exit != c.exit {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", c.reason, exit, stdout, stderr)
		}
	}
}

func TestModules(t *testing.T) {
	dir := t.TempDir()
	for name, source := range map[string]string{
		"main.js":     "const once = require('./lib/once.js');\nrequire('./lib/once.js');\nconsole.log(once.text, __filename.endsWith('main.js'));\nonce.fail();",
		"lib/once.js": "console.log('loaded');\nexports.text = require('fs').readFileSync(__dirname + '/text', 'utf8');\nexports.fail = () => {\n  throw new Error('here');\n};",
		"lib/text":    "content",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stdout, stderr, exit := run(t, "", func(o *javascript.Options) { o.File = filepath.Join(dir, "main.js") })
	if stdout != "loaded\ncontent true\n" || exit != 1 || !strings.Contains(stderr, "lib/once.js:4") {
		t.Errorf("exit %d, stdout %q, stderr %q", exit, stdout, stderr)
	}
}

func TestNothingToRun(t *testing.T) {
	for _, options := range []javascript.Options{{}, {Code: "1", File: "x"}} {
		if _, err := javascript.Run(t.Context(), options); err == nil {
			t.Errorf("%+v runs", options)
		}
	}
}

func TestScriptThatDoesNotComeBack(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := javascript.Run(ctx, javascript.Options{Code: "console.log('on'); for (;;) {}", Stdout: writer(func() { cancel() })})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

// writer calls a function with each write.
type writer func()

func (w writer) Write(b []byte) (int, error) {
	w()
	return len(b), nil
}

// lines hands on what a program writes, a line for each write.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- strings.TrimSpace(string(b))
	return len(b), nil
}

const echo = `
const server = require('node:http').createServer((request, response) => {
  if (request.url === '/throw') throw new Error('thrown');
  if (request.url === '/drop') return request.destroy();
  let body = '';
  request.setEncoding('utf8');
  request.on('data', (chunk) => { body += chunk; });
  request.on('end', () => {
    response.writeHead(Number(request.headers['x-code'] || 200), { 'X-Method': request.method });
    response.write(request.url + ' ');
    setTimeout(() => response.end(body), 1);
  });
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
process.on('SIGTERM', () => server.close(() => { console.log('closed'); process.exit(7); }));
`

func TestServer(t *testing.T) {
	said, signals := make(lines, 10), make(chan os.Signal, 1)
	type end struct {
		code int
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		code, err := javascript.Run(t.Context(), javascript.Options{Code: echo, Stdout: said, Signals: signals})
		ended <- end{code, err}
	}()
	url := "http://127.0.0.1:" + <-said
	type answer struct {
		code         int
		method, text string
	}
	post := func(path, body, code string) (answer, error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, strings.NewReader(body))
		if err != nil {
			return answer{}, err
		}
		request.Header.Set("X-Code", code)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return answer{}, err
		}
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		return answer{response.StatusCode, response.Header.Get("X-Method"), string(content)}, err
	}
	var posts sync.WaitGroup
	for range 20 {
		posts.Go(func() {
			got, err := post("/a?b=c", "grüße", "418")
			if want := (answer{http.StatusTeapot, http.MethodPost, "/a?b=c grüße"}); err != nil || got != want {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	posts.Wait()
	if got, err := post("/drop", "", ""); err == nil {
		t.Errorf("a destroyed request has the answer %+v", got)
	}
	signals <- syscall.SIGTERM
	if e := <-ended; e.code != 7 || e.err != nil || <-said != "closed" {
		t.Errorf("it ended with %d, %v", e.code, e.err)
	}
}

func TestServerThatThrows(t *testing.T) {
	said := make(lines, 10)
	ended := make(chan int, 1)
	go func() {
		code, _ := javascript.Run(t.Context(), javascript.Options{Code: echo, Stdout: said})
		ended <- code
	}()
	response, err := http.Get("http://127.0.0.1:" + <-said + "/throw")
	if err == nil {
		response.Body.Close()
		t.Errorf("the answer is %v", response.Status)
	}
	if code := <-ended; code != 1 {
		t.Errorf("it ended with %d", code)
	}
}

func TestSignalWithoutAFunction(t *testing.T) {
	said, signals := make(lines, 10), make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	code, err := javascript.Run(t.Context(), javascript.Options{Code: "setTimeout(() => {}, 60000)", Stdout: said, Signals: signals})
	if code != 143 || err != nil {
		t.Errorf("it ended with %d, %v", code, err)
	}
}

func TestPortThatIsTaken(t *testing.T) {
	stdout, stderr, exit := run(t, `
const http = require('node:http');
const first = http.createServer(() => {});
first.listen(0, '127.0.0.1', () => {
  const second = http.createServer(() => {});
  second.on('error', (error) => { console.log('refused'); process.exit(4); });
  second.listen(first.address().port, '127.0.0.1');
});`)
	if stdout != "refused\n" || exit != 4 {
		t.Errorf("exit %d, stdout %q, stderr %q", exit, stdout, stderr)
	}
}
