'use strict';

// The Pods of a CatSet, from its spec and the Pods there are. Metacontroller rolls
// through them by itself (RollingRecreate); this hook keeps the order in which they
// come and go.

const { serve } = require('./server.js');

function isReady(pod) {
  const conditions = (pod.status && pod.status.conditions) || [];
  return pod.metadata.deletionTimestamp === undefined && conditions.some((c) => c.type === 'Ready' && c.status === 'True');
}

function podName(parent, ordinal) {
  return `${parent.metadata.name}-${ordinal}`;
}

function newPod(parent, ordinal) {
  const { metadata = {}, spec } = parent.spec.template;
  const name = podName(parent, ordinal);
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, labels: metadata.labels, annotations: metadata.annotations },
    spec: { ...spec, hostname: name, subdomain: parent.spec.serviceName },
  };
}

// The observed Pods by ordinal.
function byOrdinal(parent, pods) {
  const prefix = `${parent.metadata.name}-`;
  const found = new Map();
  for (const pod of pods) {
    const ordinal = pod.metadata.name.slice(prefix.length);
    if (pod.metadata.name.startsWith(prefix) && /^(0|[1-9][0-9]*)$/.test(ordinal)) {
      found.set(Number(ordinal), pod);
    }
  }
  return found;
}

// The ordinals that should exist now.
function wanted(replicas, observed) {
  const ordinals = [];
  // Up: a Pod is made when all before it are ready. One that is there stays.
  let settled = true;
  for (let ordinal = 0; ordinal < replicas; ordinal++) {
    const pod = observed.get(ordinal);
    if (pod !== undefined || settled) {
      ordinals.push(ordinal);
    }
    settled = settled && pod !== undefined && isReady(pod);
  }
  // Down: the highest goes, and the others wait until it is gone.
  const surplus = [...observed.keys()].filter((ordinal) => ordinal >= replicas).sort((a, b) => a - b);
  surplus.pop();
  ordinals.push(...surplus);
  // A rolling update follows the order of the children: the highest first.
  return ordinals.sort((a, b) => b - a);
}

function answer(parent, children, replicas) {
  const pods = Object.values(children['Pod.v1']);
  const observed = byOrdinal(parent, pods);
  const labels = parent.spec.selector.matchLabels || {};
  return {
    status: {
      replicas: pods.length,
      readyReplicas: pods.filter(isReady).length,
      // For kubectl scale and autoscalers.
      selector: Object.entries(labels).map(([key, value]) => `${key}=${value}`).join(','),
    },
    children: wanted(replicas, observed).map((ordinal) => newPod(parent, ordinal)),
  };
}

function sync({ parent, children }) {
  return answer(parent, children, parent.spec.replicas);
}

// Takes the set down in order before it goes.
function finalize({ parent, children }) {
  return { ...answer(parent, children, 0), finalized: Object.keys(children['Pod.v1']).length === 0 };
}

serve({ '/sync': sync, '/finalize': finalize });
