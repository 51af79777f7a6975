'use strict';

// Two ClusterRoles for each CustomResourceDefinition, which the cluster's own roles
// view and edit take up (and admin, which takes up edit).

const { serve } = require('./server.js');

function role(name, level, rules) {
  return {
    apiVersion: 'rbac.authorization.k8s.io/v1',
    kind: 'ClusterRole',
    metadata: { name, labels: { [`rbac.authorization.k8s.io/aggregate-to-${level}`]: 'true' } },
    rules,
  };
}

function sync({ object }) {
  const { group, names, versions } = object.spec;
  const served = versions.filter((version) => version.served);
  const has = (subresource) => served.some((version) => version.subresources && version.subresources[subresource] !== undefined);
  const readable = [names.plural];
  const writable = [names.plural];
  if (has('status')) {
    readable.push(`${names.plural}/status`);
  }
  if (has('scale')) {
    readable.push(`${names.plural}/scale`);
    writable.push(`${names.plural}/scale`);
  }
  return {
    attachments: [
      role(`${object.metadata.name}-view`, 'view', [
        { apiGroups: [group], resources: readable, verbs: ['get', 'list', 'watch'] },
      ]),
      role(`${object.metadata.name}-edit`, 'edit', [
        { apiGroups: [group], resources: writable, verbs: ['create', 'delete', 'deletecollection', 'patch', 'update'] },
      ]),
    ],
  };
}

// The definition goes, or it has lost the annotation.
function finalize({ attachments }) {
  return { attachments: [], finalized: Object.keys(attachments['ClusterRole.rbac.authorization.k8s.io/v1']).length === 0 };
}

serve({ '/sync': sync, '/finalize': finalize });
