'use strict';

// A Pod for each index, at most spec.parallelism of them running. Pods that have
// ended stay, with their logs; delete one and its index runs again.

const { serve } = require('./server.js');

const indexLabel = 'samples.metacontroller.io/index';

function phaseOf(pod) {
  return (pod.status && pod.status.phase) || 'Pending';
}

function hasEnded(pod) {
  return phaseOf(pod) === 'Succeeded' || phaseOf(pod) === 'Failed';
}

function newPod(parent, index) {
  const { metadata = {}, spec } = parent.spec.template;
  const variable = { name: 'JOB_INDEX', value: String(index) };
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name: `${parent.metadata.name}-${index}`,
      labels: { ...metadata.labels, [indexLabel]: String(index) },
      annotations: metadata.annotations,
    },
    spec: {
      restartPolicy: 'OnFailure',
      ...spec,
      containers: spec.containers.map((container) => ({ ...container, env: [...(container.env || []), variable] })),
    },
  };
}

function sync({ parent, children }) {
  const { completions, parallelism } = parent.spec;
  // The parent has a namespace and the hook is version v1: the keys are names.
  const observed = children['Pod.v1'];
  const indexes = [...Array(completions).keys()];
  const podOf = (index) => observed[`${parent.metadata.name}-${index}`];

  let running = indexes.filter((index) => podOf(index) !== undefined && !hasEnded(podOf(index))).length;
  const count = (phase) => indexes.filter((index) => podOf(index) !== undefined && phaseOf(podOf(index)) === phase).length;
  const status = { active: running, succeeded: count('Succeeded'), failed: count('Failed') };
  status.conditions = [{ type: 'Complete', status: status.succeeded === completions ? 'True' : 'False' }];

  const pods = [];
  for (const index of indexes) {
    if (podOf(index) === undefined) {
      if (running >= parallelism) {
        continue;
      }
      running++;
    }
    pods.push(newPod(parent, index));
  }
  return { status, children: pods };
}

serve({ '/sync': sync });
