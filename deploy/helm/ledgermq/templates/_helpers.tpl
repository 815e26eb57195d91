{{- define "ledgermq.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "ledgermq.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "ledgermq.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "ledgermq.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "ledgermq.selector" -}}
app.kubernetes.io/name: {{ include "ledgermq.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ledgermq.labels" -}}
{{ include "ledgermq.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "ledgermq.headless" -}}
{{ include "ledgermq.fullname" . }}-nodes
{{- end }}

{{- define "ledgermq.secret" -}}
{{ .Values.cluster.existingSecret | default (printf "%s-cluster" (include "ledgermq.fullname" .)) }}
{{- end }}

{{- define "ledgermq.tlsSecret" -}}
{{ .Values.tls.existingSecret | default (printf "%s-tls" (include "ledgermq.fullname" .)) }}
{{- end }}

{{- define "ledgermq.usesTls" -}}
{{- if or (ne .Values.tls.mode "off") .Values.tls.peers }}yes{{ end }}
{{- end }}

{{- define "ledgermq.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The number of nodes that run, or that formed the cluster and may come back. */}}
{{- define "ledgermq.known" -}}
{{ max (int .Values.replicas) (int .Values.cluster.initialNodes) }}
{{- end }}

{{/* The address of a node in the headless Service; the argument is a list of the root and the ordinal. */}}
{{- define "ledgermq.host" -}}
{{- $root := index . 0 -}}
{{ include "ledgermq.fullname" $root }}-{{ index . 1 }}.{{ include "ledgermq.headless" $root }}.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}
{{- end }}

{{/* What is the same on all nodes and needs a restart to change. */}}
{{- define "ledgermq.settings" -}}
{{- $name := include "ledgermq.fullname" . -}}
data: /data/node
listen_host: {{ .Values.listenHost | quote }}
access:
  {{- if .Values.authentication.enabled }}
  authentication: required
  bootstrap_secret_file: /etc/ledgermq/cluster/first-user-secret
  {{- else }}
  allow_unauthenticated: "anyone who reaches the port may read and write"
  {{- end }}
  {{- if .Values.metrics.enabled }}
  allow_open_http: "anyone who reaches the port may read health and metrics"
  {{- end }}
{{- if ne .Values.tls.mode "off" }}
tls:
  mode: {{ .Values.tls.mode }}
  certificate_file: /etc/ledgermq/tls/tls.crt
  key_file: /etc/ledgermq/tls/tls.key
{{- end }}
{{- if .Values.tls.peers }}
peer_tls:
  mode: required
  certificate_file: /etc/ledgermq/tls/tls.crt
  key_file: /etc/ledgermq/tls/tls.key
  ca_file: /etc/ledgermq/tls/ca.crt
{{- end }}
{{- if .Values.tiered.url }}
tiered:
  url: {{ .Values.tiered.url | quote }}
  region: {{ .Values.tiered.region | quote }}
  {{- with .Values.tiered.endpoint }}
  endpoint: {{ . | quote }}
  {{- end }}
  {{- if .Values.tiered.existingSecret }}
  credentials_file: /etc/ledgermq/store/credentials
  {{- end }}
{{- end }}
cluster:
  secret_file: /etc/ledgermq/cluster/cluster-secret
  groups:
    {{- range .Values.cluster.brokerGroups }}
    - name: {{ .name }}
      replicas:
        {{- range .replicas }}
        - {{ $name }}-{{ . }}
        {{- end }}
      {{- if hasKey . "preferredLeader" }}
      preferred_leader: {{ $name }}-{{ .preferredLeader }}
      {{- end }}
      {{- with omit . "name" "replicas" "preferredLeader" }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- end }}
{{- end }}

{{/* The whole configuration of one node; the argument is a list of the root and the ordinal. */}}
{{- define "ledgermq.config" -}}
{{- $root := index . 0 -}}
{{- $ordinal := index . 1 -}}
{{- $values := $root.Values -}}
{{- $first := int $values.cluster.initialNodes -}}
{{- $nodes := dict -}}
{{- /* The names in this list are the first voters of the controller quorum. A node that joins adds only itself. */ -}}
{{- range $other := ternary (until $first) (append (until $first) $ordinal) (lt $ordinal $first) -}}
  {{- $ports := $values.ports -}}
  {{- $address := dict "host" (include "ledgermq.host" (list $root $other)) "client_port" $ports.client "peer_port" $ports.peer -}}
  {{- $_ := set $address "controller_port" $ports.controller -}}
  {{- $_ := set $address "http_port" $ports.http -}}
  {{- $_ := set $address "workers" $values.workers -}}
  {{- if $values.external.enabled -}}
    {{- $outside := index $values.external.nodes $other -}}
    {{- $_ := set $address "advertised_host" $outside.host -}}
    {{- $_ := set $address "advertised_port" $outside.port -}}
  {{- end -}}
  {{- $_ := set $nodes (printf "%s-%d" (include "ledgermq.fullname" $root) $other) $address -}}
{{- end -}}
{{- $own := dict "node" (printf "%s-%d" (include "ledgermq.fullname" $root) $ordinal) "nodes" $nodes -}}
{{- if ge $ordinal $first -}}
  {{- $_ := set $own "join" "spare" -}}
{{- end -}}
{{- toYaml (mustMergeOverwrite (include "ledgermq.settings" $root | fromYaml) (deepCopy $values.config) $own) -}}
{{- end }}

{{/* Not the labels of the nodes: the Services must not take these pods for nodes. */}}
{{- define "ledgermq.memberSelector" -}}
app.kubernetes.io/name: {{ include "ledgermq.name" . }}-members
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ledgermq.memberLabels" -}}
{{ include "ledgermq.memberSelector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* The pod that lets the members follow the replicas; the argument is a list of the root and the options that add nodes. */}}
{{- define "ledgermq.memberPod" -}}
{{- $values := (index . 0).Values -}}
{{- $adds := index . 1 -}}
{{- with index . 0 -}}
metadata:
  labels: {{- include "ledgermq.memberSelector" . | nindent 4 }}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: members
      image: {{ include "ledgermq.image" . }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      command:
        - sh
        - -c
        - >-
          exec ledgermq member scale {{ include "ledgermq.fullname" . }} --replicas {{ $values.replicas }}{{ $adds }} --yes
          --timeout {{ $values.members.timeoutSeconds }}s --endpoints "{{ include "ledgermq.fullname" . }}:{{ $values.ports.client }}"
          --cluster-secret /etc/ledgermq/cluster/cluster-secret{{ if eq $values.tls.mode "required" }} --tls --ca /etc/ledgermq/tls/ca.crt{{ end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      resources:
        requests: {cpu: 50m, memory: 128Mi}
        limits: {memory: 256Mi}
      volumeMounts:
        - {name: cluster, mountPath: /etc/ledgermq/cluster, readOnly: true}
        {{- if eq $values.tls.mode "required" }}
        - {name: tls, mountPath: /etc/ledgermq/tls, readOnly: true}
        {{- end }}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: cluster
      secret:
        secretName: {{ include "ledgermq.secret" . }}
        defaultMode: 0440
        items: [{key: cluster-secret, path: cluster-secret}]
    {{- if eq $values.tls.mode "required" }}
    - name: tls
      secret:
        secretName: {{ include "ledgermq.tlsSecret" . }}
        defaultMode: 0440
        items: [{key: ca.crt, path: ca.crt}]
    {{- end }}
    - name: tmp
      emptyDir: {}
{{- end -}}
{{- end }}
