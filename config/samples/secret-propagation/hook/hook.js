'use strict';

// Copies of the chosen Secrets in each of the chosen namespaces.

const { serve } = require('./server.js');

function customize({ parent }) {
  const { secrets, from, to } = parent.spec;
  return {
    relatedResources: [
      // A namespace that begins to match brings its Secrets along.
      { apiVersion: 'v1', resource: 'secrets', labelSelector: secrets, namespaceSelector: from },
      { apiVersion: 'v1', resource: 'namespaces', labelSelector: to },
    ],
  };
}

function sync({ parent, children, related }) {
  // Of two with the same name the first counts, by the order of their namespaces.
  const originals = new Map();
  for (const key of Object.keys(related['Secret.v1']).sort()) {
    const secret = related['Secret.v1'][key];
    if (secret.metadata.deletionTimestamp === undefined && !originals.has(secret.metadata.name)) {
      originals.set(secret.metadata.name, secret);
    }
  }
  const targets = Object.values(related['Namespace.v1'])
    .filter((namespace) => namespace.metadata.deletionTimestamp === undefined)
    .map((namespace) => namespace.metadata.name);

  const copies = [];
  for (const namespace of targets) {
    for (const { metadata, type, data } of originals.values()) {
      if (metadata.namespace !== namespace) {
        // No label of the original is copied: a copy is not to be copied in turn.
        copies.push({ apiVersion: 'v1', kind: 'Secret', metadata: { name: metadata.name, namespace }, type, data });
      }
    }
  }
  return {
    status: { sources: originals.size, namespaces: targets.length, copies: Object.keys(children['Secret.v1']).length },
    children: copies,
  };
}

serve({ '/sync': sync, '/customize': customize });
