'use strict';

// Two ReplicaSets, blue and green, and a Service in front of one of them.
//
// The Service selects Pods by the revision of their template, so it never leads to
// Pods of two revisions, whatever else is under way. Its selector is the one truth
// about what is active: it changes in one write, when every Pod of the new revision
// is ready.

const { createHash } = require('node:crypto');
const { serve } = require('./server.js');

const nameLabel = 'samples.metacontroller.io/bluegreen';
const colorLabel = 'samples.metacontroller.io/color';
const revisionLabel = 'samples.metacontroller.io/revision';
// When the Service turned. It is written together with the selector.
const turnedAnnotation = 'samples.metacontroller.io/turned-at';

const other = { blue: 'green', green: 'blue' };

// The keys of an object in one order, so that equal templates are one revision.
function canonical(value) {
  if (Array.isArray(value)) {
    return value.map(canonical);
  }
  if (value === null || typeof value !== 'object') {
    return value;
  }
  return Object.fromEntries(Object.keys(value).sort().map((key) => [key, canonical(value[key])]));
}

function revisionOf(template) {
  return createHash('sha256').update(JSON.stringify(canonical(template))).digest('hex').slice(0, 10);
}

function observedRevision(set) {
  return set && set.spec.template.metadata.labels[revisionLabel];
}

// Pods that the set has, or will have by its spec. Its status may be about an
// older spec.
function podsOf(set) {
  if (set === undefined) {
    return 0;
  }
  return Math.max(set.spec.replicas, (set.status && set.status.replicas) || 0);
}

function isReady(set, replicas) {
  const status = (set && set.status) || {};
  return set !== undefined && set.spec.replicas === replicas &&
    status.observedGeneration === set.metadata.generation &&
    (status.replicas || 0) === replicas && (status.readyReplicas || 0) === replicas;
}

function replicaSet(parent, color, template, revision, replicas) {
  const labels = { [nameLabel]: parent.metadata.name, [colorLabel]: color };
  return {
    apiVersion: 'apps/v1',
    kind: 'ReplicaSet',
    metadata: { name: `${parent.metadata.name}-${color}`, labels },
    spec: {
      replicas,
      selector: { matchLabels: labels },
      template: {
        metadata: {
          labels: { ...(template.metadata || {}).labels, ...labels, [revisionLabel]: revision },
          annotations: (template.metadata || {}).annotations,
        },
        spec: template.spec,
      },
    },
  };
}

// The set as it is, with another number of Pods.
function kept(parent, color, set, replicas) {
  return replicaSet(parent, color, set.spec.template, observedRevision(set), replicas);
}

// The set with a new template. A ReplicaSet never changes Pods that it has, so
// those of another template must go first.
function brought(parent, color, set, template, revision, replicas) {
  if (observedRevision(set) !== revision && podsOf(set) > 0) {
    return kept(parent, color, set, 0);
  }
  return replicaSet(parent, color, template, revision, replicas);
}

function sync({ parent, children }) {
  const { replicas, template, drainSeconds } = parent.spec;
  const name = parent.metadata.name;
  const named = (kind) => Object.fromEntries(Object.values(children[kind]).map((o) => [o.metadata.name, o]));
  const sets = named('ReplicaSet.apps/v1');
  const blueGreen = { blue: sets[`${name}-blue`], green: sets[`${name}-green`] };
  const service = named('Service.v1')[name];

  const wanted = revisionOf(template);
  let revision = (service && service.spec.selector[revisionLabel]) || (parent.status && parent.status.revision) || wanted;
  let active = ['blue', 'green'].find((color) => observedRevision(blueGreen[color]) === revision);
  if (active === undefined) {
    // Nothing answers: the first time, or after somebody deleted the active set.
    revision = wanted;
    active = ['blue', 'green'].find((color) => observedRevision(blueGreen[color]) === wanted) || 'blue';
  }
  const idle = other[active];
  const idleSet = blueGreen[idle];

  let turned = service && service.metadata.annotations && service.metadata.annotations[turnedAnnotation];
  const draining = turned ? Math.max(0, Date.parse(turned) + drainSeconds * 1000 - Date.now()) : 0;

  const answer = [];
  let resync;
  if (revision === wanted) {
    answer.push(brought(parent, active, blueGreen[active], template, wanted, replicas));
    if (idleSet !== undefined) {
      answer.push(kept(parent, idle, idleSet, draining > 0 ? idleSet.spec.replicas : 0));
      resync = draining;
    }
  } else {
    answer.push(kept(parent, active, blueGreen[active], replicas));
    if (observedRevision(idleSet) !== wanted && podsOf(idleSet) > 0 && draining > 0) {
      // A change soon after a change: the Pods of the one before last come first.
      answer.push(kept(parent, idle, idleSet, idleSet.spec.replicas));
      resync = draining;
    } else {
      answer.push(brought(parent, idle, idleSet, template, wanted, replicas));
      if (observedRevision(idleSet) === wanted && isReady(idleSet, replicas)) {
        revision = wanted;
        turned = new Date().toISOString();
        resync = drainSeconds * 1000;
      }
    }
  }

  answer.push({
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name, annotations: turned ? { [turnedAnnotation]: turned } : undefined },
    spec: { ...parent.spec.service, selector: { [nameLabel]: name, [revisionLabel]: revision } },
  });

  const now = ['blue', 'green'].find((color) => observedRevision(blueGreen[color]) === revision) || active;
  const status = (blueGreen[now] && blueGreen[now].status) || {};
  return {
    status: {
      active: now,
      revision,
      released: revision === wanted && (status.readyReplicas || 0) === replicas,
      replicas: status.replicas || 0,
      readyReplicas: status.readyReplicas || 0,
      selector: `${nameLabel}=${name},${revisionLabel}=${revision}`,
    },
    children: answer,
    // A little later than the time is over, so that it is over.
    resyncAfterSeconds: resync > 0 ? resync / 1000 + 0.1 : undefined,
  };
}

serve({ '/sync': sync });
