{{/* The Service has this name, which clients inside the cluster know; in the two-container chart it was the release's too. */}}
{{- define "task-proxy.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{/*
Never the name of the two-container chart's Deployment, which was the release's: its selector was
another one, and a selector cannot be changed. Under another name, helm upgrade makes this one and removes the old one, and helm rollback
does the reverse.
*/}}
{{- define "task-proxy.deployment" -}}
{{- include "task-proxy.fullname" . }}-server
{{- end -}}

{{/* The release. As a part of another chart, which can have this one several times, the name that it has there besides. */}}
{{- define "task-proxy.instance" -}}
{{- if .Chart.IsRoot -}}{{- .Release.Name -}}{{- else -}}{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}{{- end -}}
{{- end -}}

{{/* Not to be changed, ever: a Deployment's selector cannot be. Documented values.yaml have anti-affinity by the component. */}}
{{- define "task-proxy.selectorLabels" -}}
app.kubernetes.io/name: task-proxy
app.kubernetes.io/instance: {{ include "task-proxy.instance" . | quote }}
app.kubernetes.io/component: task-proxy
{{- end -}}

{{- define "task-proxy.commonLabels" -}}
app.kubernetes.io/name: task-proxy
app.kubernetes.io/instance: {{ include "task-proxy.instance" . | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: ytsaurus
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
yt_component: task-proxy
{{- end -}}

{{- define "task-proxy.labels" -}}
{{ include "task-proxy.commonLabels" . }}
app.kubernetes.io/component: task-proxy
{{- end -}}

{{- define "task-proxy.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "task-proxy.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "task-proxy.image" -}}
{{- $image := .Values.image -}}
{{- if kindIs "string" $image -}}
{{- $image -}}
{{- else if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* A list, or text with commas, as text with commas. */}}
{{- define "task-proxy.joined" -}}
{{- if kindIs "slice" . -}}{{- join "," . -}}{{- else -}}{{- . -}}{{- end -}}
{{- end -}}

{{/* The names that services are reached by: a wildcard and the domain itself, for each base domain. */}}
{{- define "task-proxy.hosts" -}}
{{- range splitList "," (include "task-proxy.joined" .Values.baseDomain | replace " " "") }}
- {{ printf "*.%s" . | quote }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "task-proxy.serviceType" -}}
{{- if .Values.service.type -}}
{{- .Values.service.type -}}
{{- else if or .Values.gateway.enabled .Values.ingress.enabled -}}
ClusterIP
{{- else -}}
{{- ternary "LoadBalancer" "NodePort" .Values.tls.enabled -}}
{{- end -}}
{{- end -}}

{{- define "task-proxy.servicePort" -}}
{{- .Values.service.port | default (ternary 443 80 .Values.tls.enabled) | int -}}
{{- end -}}
