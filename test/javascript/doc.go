// Package javascript runs small Node.js programs where there is no Node.js: the
// hook servers of config/samples and the workloads of their examples, in the
// same files that run under node on a real cluster.
//
//	file ─ require ─> goja ── one goroutine ──┬─ http server ─ jobs ─┐
//	                                          ├─ timers ──── jobs ───┤
//	                                          └─ signals ──── jobs ──┴─> callbacks
//
// The engine is github.com/dop251/goja, in pure Go. Of Node.js there is what those
// files use: CommonJS modules, process, console, timers, and of the modules http,
// fs and crypto the functions that the table builtins leads to. What is missing
// fails with an error that names it, as a missing property does in node.
//
// As in node, all of a program's code runs in one goroutine. What happens outside
// of it (a request, a timer, a signal) becomes a job in a queue, and the program
// ends when no job can come any more.
package javascript
