'use strict';

// A tenant's namespaces, each with a quota.

const { serve } = require('./server.js');

const tenantLabel = 'samples.metacontroller.io/tenant';
const quotaName = 'tenant';

function sync({ parent, children }) {
  const { environments, pods } = parent.spec;
  const tenant = parent.metadata.name;
  // Version v1 with a cluster-scoped parent: a Namespace is under its name, a
  // ResourceQuota under <namespace>/<name>.
  const namespaces = children['Namespace.v1'];
  const quotas = children['ResourceQuota.v1'];

  const answer = [];
  const status = { namespaces: 0, quotas: 0 };
  for (const environment of environments) {
    const name = `${tenant}-${environment}`;
    answer.push({ apiVersion: 'v1', kind: 'Namespace', metadata: { name, labels: { [tenantLabel]: tenant } } });
    const namespace = namespaces[name];
    // Nothing can be put into a namespace that is not there yet or is going away.
    if (namespace === undefined || namespace.metadata.deletionTimestamp !== undefined) {
      continue;
    }
    status.namespaces++;
    status.quotas += quotas[`${name}/${quotaName}`] === undefined ? 0 : 1;
    answer.push({
      apiVersion: 'v1',
      kind: 'ResourceQuota',
      metadata: { name: quotaName, namespace: name },
      spec: { hard: { pods: String(pods) } },
    });
  }
  return { status, children: answer };
}

serve({ '/sync': sync });
