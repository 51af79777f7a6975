{{/* The namespace of everything that has one. */}}
{{- define "solo.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end }}

{{/* The name in the controller's labels. */}}
{{- define "solo.name" -}}
{{- .Values.nameOverride | default "metacontroller" | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/* The name of the controller's objects: one instance runs, so the release's name says enough if it has the word. */}}
{{- define "solo.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains "metacontroller" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-metacontroller" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "solo.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "solo.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{- define "solo.guardServiceAccountName" -}}
{{- if .Values.guard.serviceAccount.create -}}
{{- .Values.guard.serviceAccount.name | default "metacontroller-guard" -}}
{{- else -}}
{{- .Values.guard.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{/* An image's reference: include "solo.image" (list $ .Values.image) */}}
{{- define "solo.image" -}}
{{- $root := index . 0 -}}{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default $root.Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{/* Labels of every object, beside those that it has by the manifests. */}}
{{- define "solo.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/part-of: metacontroller-solo
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") | quote }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
The objects of a file below files/, which "make generate" makes of the folders of
config/, as a YAML list: include "solo.read" (list $ "guard.yaml") | fromYamlArray.
So nothing that the manifests say is written twice.
*/}}
{{- define "solo.read" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}
{{- range regexSplit "(?m)^---$" ($root.Files.Get (printf "files/%s" $name)) -1 }}
{{- with fromYaml . }}
- {{ toYaml . | nindent 2 | trim }}
{{- end }}
{{- end }}
{{- end }}

{{/*
An object with the release's labels, its namespaces and the names of its service
accounts: include "solo.object" (list $ $object). config/ has fixed ones.
*/}}
{{- define "solo.object" -}}
{{- $root := index . 0 -}}{{- $object := index . 1 -}}
{{- $namespaces := list "metacontroller" "metacontroller-guard" -}}
{{- $accounts := dict "metacontroller" (include "solo.serviceAccountName" $root) "metacontroller-guard" (include "solo.guardServiceAccountName" $root) -}}
{{- $meta := $object.metadata -}}
{{- $_ := set $meta "labels" (merge dict (include "solo.labels" $root | fromYaml) ($meta.labels | default dict)) -}}
{{- if has $meta.namespace $namespaces -}}
{{- $_ := set $meta "namespace" (include "solo.namespace" $root) -}}
{{- end -}}
{{- range $object.subjects -}}
{{- $_ := set . "namespace" (include "solo.namespace" $root) -}}
{{- $_ := set . "name" (get $accounts .name | default .name) -}}
{{- end -}}
{{ toYaml $object }}
{{- end }}

{{/* What makes an object that a hook applied the release's own from the next upgrade on. */}}
{{- define "solo.owned" -}}
meta.helm.sh/release-name: {{ .Release.Name | quote }}
meta.helm.sh/release-namespace: {{ .Release.Namespace | quote }}
{{- end }}

{{/*
Whether SingletonPolicies are served already. If not, the objects that need them
cannot be in the release, for Helm looks up every kind of it first. And the API
server would refuse every Pod while it knows a binding and not the kind of its
param. So hooks apply them, after everything else: after the install, and after a
rollback to it, which deletes what only later revisions have.
*/}}
{{- define "solo.served" -}}
{{- if .Capabilities.APIVersions.Has "guard.metacontroller.io/v1alpha1/SingletonPolicy" }}true{{ end -}}
{{- end }}

{{/* Refuses values that do not fit each other. */}}
{{- define "solo.validate" -}}
{{- if not (or .Values.controller.enabled .Values.guard.enabled .Values.crds.enabled) -}}
{{- fail "controller.enabled, guard.enabled and crds.enabled are all false: there is nothing to install" -}}
{{- end -}}
{{- if and .Values.guard.enabled .Values.webhook.create .Values.policy.spec.match -}}
{{- fail "policy.spec.match needs webhook.create: false, for the admission objects of this chart fit the default match; apply what \"guard render --policy-file\" prints in their place" -}}
{{- end -}}
{{- if and .Values.guard.enabled .Values.webhook.create (eq .Values.tls.source "files") (not .Values.tls.caBundle) -}}
{{- fail "tls.source: files needs tls.caBundle, the PEM certificates of the authorities that signed the guard's certificate: without it no API server can call the guard" -}}
{{- end -}}
{{- if and (gt (int .Values.replicas) 1) .Values.guard.enabled (not (has .Values.policy.spec.mode (list "LeaderElected" "Sharded"))) -}}
{{- fail (printf "replicas: %d needs policy.spec.mode: LeaderElected, for the guard lets one Metacontroller run" (int .Values.replicas)) -}}
{{- end -}}
{{- end }}

{{/* The metadata of what runs the check: it is there while the hook runs. */}}
{{- define "solo.checkMetadata" -}}
name: metacontroller-guard-check
labels:
  app.kubernetes.io/name: metacontroller-guard-check
  {{- include "solo.labels" . | nindent 2 }}
annotations:
  helm.sh/hook: post-install,post-upgrade,post-rollback
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
