'use strict';

// A copy of one ConfigMap in each of the chosen namespaces. When the original goes,
// so do the copies.

const { serve } = require('./server.js');

// What sync is to see besides the parent and its copies. A change of any of it
// calls sync.
function customize({ parent }) {
  const { source, namespaces } = parent.spec;
  return {
    relatedResources: [
      { apiVersion: 'v1', resource: 'configmaps', namespace: source.namespace, names: [source.name] },
      { apiVersion: 'v1', resource: 'namespaces', labelSelector: namespaces },
    ],
  };
}

function sync({ parent, children, related }) {
  const { source } = parent.spec;
  // Version v2: objects with a namespace are under <namespace>/<name>.
  const original = related['ConfigMap.v1'][`${source.namespace}/${source.name}`];
  const targets = Object.values(related['Namespace.v1'])
    .filter((namespace) => namespace.metadata.deletionTimestamp === undefined)
    .map((namespace) => namespace.metadata.name)
    .filter((name) => name !== source.namespace);
  const copies = original === undefined ? [] : targets.map((namespace) => ({
    apiVersion: 'v1',
    kind: 'ConfigMap',
    metadata: { name: source.name, namespace },
    data: original.data,
    binaryData: original.binaryData,
  }));
  return {
    status: { source: original === undefined ? 'Missing' : 'Found', copies: Object.keys(children['ConfigMap.v1']).length },
    children: copies,
  };
}

serve({ '/sync': sync, '/customize': customize });
