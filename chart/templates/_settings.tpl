{{/*
What the values come to, in one spelling. Those of earlier charts are taken here, and nowhere else.
*/}}
{{- define "task-proxy.settings" -}}
{{- $v := .Values -}}
{{- if not $v.shutdown }}{{ fail "shutdown is empty: the chart's own values are not there. helm upgrade --reuse-values takes those of the chart that was installed before: give your values with -f instead, or use --reset-then-reuse-values" }}{{ end -}}
{{- $token := kindIs "invalid" $v.tokenSecretRef | ternary "task-proxy-token" $v.tokenSecretRef -}}
{{- if kindIs "string" $token }}{{ $token = dict "name" $token }}{{ end -}}
{{- $scheme := $v.publicScheme -}}
{{- if and (not $scheme) (not $v.tls.enabled) (or $v.gateway.enabled (and $v.ingress.enabled $v.ingress.tls)) }}{{ $scheme = "https" }}{{ end -}}
{{- $shutdown := add (int $v.shutdown.delaySeconds) (int $v.shutdown.timeoutSeconds) -}}
replicas: {{ kindIs "invalid" $v.replicaCount | ternary $v.replicas $v.replicaCount | int }}
ytProxy: {{ $v.ytProxy | default (printf "http-proxies-lb.%s.svc.%s" .Release.Namespace $v.clusterDomain) | quote }}
discoveryPeriodSeconds: {{ $v.refreshPeriodSeconds | default $v.discoveryPeriodSeconds | int }}
publicScheme: {{ $scheme | quote }}
certSecret: {{ $v.tls.certSecretRef | default $v.tls.secretName | default "yt-domain-cert" | quote }}
tokenSecret: {{ $token.name | quote }}
tokenKey: {{ $token.key | default "" | quote }}
gracePeriodSeconds: {{ $v.terminationGracePeriodSeconds | default (add $shutdown 10) | int }}
{{- end -}}

{{/* A line for each value that is accepted and has no effect. */}}
{{- define "task-proxy.ignored" -}}
{{- $v := .Values -}}
{{- $one := "there is one container now" -}}
{{- range $name := list "proxy" "server" }}
{{- $part := index $v $name | default dict }}
{{- if $part.image }}
{{ $name }}.image: {{ $one }}, see image
{{- end }}
{{- if $part.resources }}
{{ $name }}.resources: {{ $one }}, see resources
{{- end }}
{{- range $key := keys $part | sortAlpha }}
{{- if not (has $key (list "image" "resources")) }}
{{ $name }}.{{ $key }}: {{ $one }}; it logs to its standard error, see log
{{- end }}
{{- end }}
{{- end }}
{{- if $v.auth.cache }}
auth.cache: decisions are always cached, 60 seconds for a yes and 5 for a no
{{- end }}
{{- if hasKey $v.timeouts "routeTimeoutSeconds" }}
timeouts.routeTimeoutSeconds: answers have no time limit of their own; an operation's annotation can set one with route_timeout_seconds
{{- end }}
{{- if hasKey $v "enabled" }}
enabled: what is installed is on; it counts where this chart is a part of another
{{- end }}
{{- if $v.persistence }}
persistence: nothing is kept in files
{{- end }}
{{- range $key := keys $v.monitoring.alerts | sortAlpha }}
{{- if hasSuffix "Threshold" $key }}
monitoring.alerts.{{ $key }}: the rules have limits of their own
{{- end }}
{{- end }}
{{- if and (kindIs "map" $v.image) $v.image.digest $v.image.tag }}
image.tag: image.digest counts
{{- end }}
{{- if and $v.autoscaling.enabled (or (not (kindIs "invalid" $v.replicaCount)) (ne (int $v.replicas) 2)) }}
replicas: autoscaling decides, from autoscaling.minReplicas on
{{- end }}
{{- end -}}
