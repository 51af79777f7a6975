'use strict';

// A Service for each Pod of a StatefulSet. The annotation's value lists the ports:
// "80:8080,9999" leads port 80 to 8080, and 9999 to itself.

const { serve } = require('./server.js');

const annotation = 'samples.metacontroller.io/service-per-pod';

function portsOf(value) {
  return value.split(',').map((word) => {
    const match = /^\s*(\d+)(?::(\d+))?\s*$/.exec(word);
    if (match === null) {
      throw new Error(`annotation ${annotation}: "${word}" is not <port> or <port>:<target port>`);
    }
    const port = Number(match[1]);
    return { name: `port-${port}`, port, targetPort: Number(match[2] || port) };
  });
}

function sync({ object }) {
  const ports = portsOf(object.metadata.annotations[annotation]);
  const start = (object.spec.ordinals && object.spec.ordinals.start) || 0;
  const attachments = [];
  for (let i = 0; i < object.spec.replicas; i++) {
    const name = `${object.metadata.name}-${start + i}`;
    attachments.push({
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { name, labels: { 'samples.metacontroller.io/stateful-set': object.metadata.name } },
      // The StatefulSet controller puts this label on its Pods.
      spec: { selector: { 'statefulset.kubernetes.io/pod-name': name }, ports },
    });
  }
  return { attachments };
}

// The StatefulSet goes, or it has lost the annotation.
function finalize({ attachments }) {
  return { attachments: [], finalized: Object.keys(attachments['Service.v1']).length === 0 };
}

serve({ '/sync': sync, '/finalize': finalize });
