'use strict';

// Serves hooks over HTTP: serve({ '/sync': (request) => answer, ... }). A hook is
// a function of the decoded request that returns the answer; what it throws
// becomes status 500, which Metacontroller shows as an event on the parent and
// tries again. Node.js alone is needed.

const http = require('node:http');

// What is read of one request, in characters.
const limit = 32 * 1024 * 1024;

function respond(response, code, value) {
  response.writeHead(code, { 'Content-Type': 'application/json' });
  response.end(JSON.stringify(value) + '\n');
}

exports.serve = function serve(hooks) {
  const server = http.createServer((request, response) => {
    if (request.url === '/healthz') {
      respond(response, 200, { healthy: true });
      return;
    }
    const hook = hooks[request.url];
    if (hook === undefined || request.method !== 'POST') {
      respond(response, 404, { error: `no hook answers ${request.method} ${request.url}` });
      return;
    }
    let body = '';
    request.setEncoding('utf8');
    request.on('data', (chunk) => {
      body += chunk;
      if (body.length > limit) {
        request.destroy();
      }
    });
    request.on('end', () => {
      let answer;
      try {
        answer = hook(JSON.parse(body));
      } catch (error) {
        // The stack is for the hook's author; the caller gets the message alone.
        console.error(request.url, error);
        respond(response, 500, { error: error.message });
        return;
      }
      respond(response, 200, answer);
    });
  });

  // Longer than Metacontroller keeps a connection that it does not use, so that
  // it never sends a request on one that is being closed here.
  server.keepAliveTimeout = 120 * 1000;

  // HOST is the Pod's address. Without it the server listens on all addresses.
  const port = Number(process.env.PORT || 8080);
  server.listen(port, process.env.HOST || undefined, () => console.log(`listening on port ${port}`));

  process.on('SIGTERM', () => server.close(() => process.exit(0)));
};
