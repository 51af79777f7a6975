{{/*
Changes the guard's Deployment of config/guard in place by the values:
include "solo.guardDeployment" (list $ $deployment)
*/}}
{{- define "solo.guardDeployment" -}}
{{- $root := index . 0 -}}{{- $deployment := index . 1 -}}
{{- $values := $root.Values.guard -}}
{{- $_ := set $deployment.spec "replicas" (int $values.replicaCount) -}}
{{- $pod := $deployment.spec.template.spec -}}
{{- $container := first $pod.containers -}}
{{- include "solo.pod" (list $root $values $deployment.spec.template $values.image) -}}
{{- $_ := set $pod "serviceAccountName" (include "solo.guardServiceAccountName" $root) -}}
{{- if eq $root.Values.tls.source "self-managed" -}}
{{- $volumes := list -}}
{{- range $pod.volumes -}}{{- if ne .name "tls" -}}{{- $volumes = append $volumes . -}}{{- end -}}{{- end -}}
{{- $_ := set $pod "volumes" $volumes -}}
{{- $mounts := list -}}
{{- range $container.volumeMounts -}}{{- if ne .name "tls" -}}{{- $mounts = append $mounts . -}}{{- end -}}{{- end -}}
{{- $_ := set $container "volumeMounts" $mounts -}}
{{- $names := printf "--tls-names=metacontroller-guard.%s.svc" (include "solo.namespace" $root) -}}
{{- $_ := set $container "args" (concat $container.args (list "--tls-source=self-managed" "--tls-secret-namespace=$(POD_NAMESPACE)" $names)) -}}
{{- else -}}
{{- range $pod.volumes -}}{{- if eq .name "tls" -}}{{- $_ := set .secret "secretName" $root.Values.tls.secretName -}}{{- end -}}{{- end -}}
{{- end -}}
{{- range include "solo.read" (list $root "admission.yaml") | fromYamlArray -}}
{{- /* The guard reports admission objects that are not as they were rendered. */ -}}
{{- if and (eq .kind "ValidatingWebhookConfiguration") (ne (int (first .webhooks).timeoutSeconds) (int $root.Values.webhook.timeoutSeconds)) -}}
{{- $_ := set $container "args" (append $container.args (printf "--expected-webhook-timeout-seconds=%d" (int $root.Values.webhook.timeoutSeconds))) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $container "args" (concat $container.args $values.extraArgs) -}}
{{- range $key := list "volumes" -}}
{{- $all := concat (get $pod $key | default list) (get $values $key) -}}
{{- if $all -}}{{- $_ := set $pod $key $all -}}{{- else -}}{{- $_ := unset $pod $key -}}{{- end -}}
{{- end -}}
{{- $mounts := concat ($container.volumeMounts | default list) $values.volumeMounts -}}
{{- if $mounts -}}{{- $_ := set $container "volumeMounts" $mounts -}}{{- else -}}{{- $_ := unset $container "volumeMounts" -}}{{- end -}}
{{- end }}

{{/*
Changes a Pod template in place by those values that the controller and the guard
share: include "solo.pod" (list $ $values $template $image)
*/}}
{{- define "solo.pod" -}}
{{- $root := index . 0 -}}{{- $values := index . 1 -}}{{- $template := index . 2 -}}{{- $image := index . 3 -}}
{{- $pod := $template.spec -}}
{{- $container := first $pod.containers -}}
{{- $_ := set $container "image" (include "solo.image" (list $root $image)) -}}
{{- $_ := set $container "imagePullPolicy" $image.pullPolicy -}}
{{- $labels := merge dict $values.podLabels ($template.metadata.labels | default dict) $root.Values.commonLabels -}}
{{- $_ := set $template.metadata "labels" $labels -}}
{{- with $values.podAnnotations -}}
{{- $_ := set $template.metadata "annotations" (merge dict . ($template.metadata.annotations | default dict)) -}}
{{- end -}}
{{- $_ := set $pod "securityContext" (mergeOverwrite dict ($pod.securityContext | default dict) $values.podSecurityContext) -}}
{{- $_ := set $container "securityContext" (mergeOverwrite dict ($container.securityContext | default dict) $values.securityContext) -}}
{{- $_ := set $container "resources" (mergeOverwrite dict ($container.resources | default dict) $values.resources) -}}
{{- $_ := set $pod "terminationGracePeriodSeconds" (int $values.terminationGracePeriodSeconds) -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" -}}
{{- with get $values $key -}}{{- $_ := set $pod $key . -}}{{- end -}}
{{- end -}}
{{- if not $values.priorityClassName -}}{{- $_ := unset $pod "priorityClassName" -}}{{- end -}}
{{- with $root.Values.imagePullSecrets -}}{{- $_ := set $pod "imagePullSecrets" . -}}{{- end -}}
{{- end }}
