{{/* Selector labels. Takes root and component. */}}
{{- define "shoal.selector" -}}
app.kubernetes.io/name: shoal
app.kubernetes.io/instance: {{ quote .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of an object. Takes root and component. */}}
{{- define "shoal.labels" -}}
{{ include "shoal.selector" . }}
app.kubernetes.io/part-of: {{ quote .root.Values.spider }}
{{- end -}}

{{/* The URL of a server, without a password. Takes root, what and bundled, the URL of a bundled server. */}}
{{- define "shoal.url" -}}
{{- $server := get .root.Values .what -}}
{{- if and $server.bundled $server.url -}}
{{- fail (printf "%s.bundled and %s.url are both set: set %s.bundled to false for a server of your own" .what .what .what) -}}
{{- end -}}
{{- if $server.bundled -}}
{{ .bundled }}
{{- else -}}
{{- if regexMatch "://[^/@]*:[^/@]*@" $server.url -}}
{{- fail (printf "%s.url has a password: leave it out, put it into a file of the Secret, and name that in %s.passwordKey" .what .what) -}}
{{- end -}}
{{ required (printf "%s.url is missing: set it, or %s.bundled" .what .what) $server.url }}
{{- end -}}
{{- end -}}

{{/* The variables of all processes. Takes root. */}}
{{- define "shoal.env" -}}
{{- $values := .root.Values -}}
{{- $own := dict "root" .root "what" "redis" "bundled" (printf "redis://%s-redis:6379/0" .root.Release.Name) -}}
- name: SHOAL_FRONTIER
  value: {{ include "shoal.url" $own | toJson }}
{{- if $values.redis.passwordKey }}
- name: SHOAL_FRONTIER_PASSWORD_FILE
  value: /run/secrets/shoal/{{ $values.redis.passwordKey }}
{{- end }}
{{- $own = dict "root" .root "what" "postgres" "bundled" (printf "postgresql://shoal@%s-postgres:5432/shoal" .root.Release.Name) }}
- name: SHOAL_STORE
  value: {{ include "shoal.url" $own | toJson }}
{{- if $values.postgres.passwordKey }}
- name: SHOAL_STORE_PASSWORD_FILE
  value: /run/secrets/shoal/{{ $values.postgres.passwordKey }}
{{- end }}
- name: SHOAL_LOG_FORMAT
  value: {{ $values.logFormat }}
{{- with $values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The volume with secrets. Takes root and more, the names of secrets beside the passwords of the servers. */}}
{{- define "shoal.secrets" -}}
- name: secrets
  secret:
    secretName: {{ required "secret is missing: name the Secret that was made of the files in secrets/" .root.Values.secret | quote }}
    # Readable only by the pod's group.
    defaultMode: 0440
    items:
    {{- range (uniq (compact (concat (list .root.Values.redis.passwordKey .root.Values.postgres.passwordKey) .more))) }}
    - {key: {{ . }}, path: {{ . }}}
    {{- end }}
{{- end -}}

{{/* The fields of all pods of shoal. Takes root. */}}
{{- define "shoal.pod" -}}
automountServiceAccountToken: false
# Service variables of a release named shoal would look like settings of shoal.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .root.Values.stopSeconds }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Where pods may run. Takes its values. */}}
{{- define "shoal.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The security context of all containers. */}}
{{- define "shoal.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Words of a command. A dollar is doubled: Kubernetes reads $(NAME) as a variable, and $$ as a dollar. */}}
{{- define "shoal.words" -}}
{{ toJson . | replace "$" "$$" }}
{{- end -}}

{{/* The pods of a crawl. Takes root and args. */}}
{{- define "shoal.crawl" -}}
{{- $values := .root.Values -}}
metadata:
  labels:
    {{- include "shoal.labels" (dict "root" .root "component" "crawl") | nindent 4 }}
spec:
  {{- include "shoal.pod" . | nindent 2 }}
  restartPolicy: Never
  containers:
    - name: crawl
      image: {{ quote $values.image }}
      imagePullPolicy: {{ $values.imagePullPolicy }}
      args: {{ include "shoal.words" .args }}
      env:
        {{- include "shoal.env" . | nindent 8 }}
      securityContext:
        {{- include "shoal.container" . | nindent 8 }}
      resources:
        {{- toYaml $values.crawl.resources | nindent 8 }}
      volumeMounts:
        - {name: secrets, mountPath: /run/secrets/shoal, readOnly: true}
        - {name: tmp, mountPath: /tmp}
  volumes:
    {{- include "shoal.secrets" (dict "root" .root "more" list) | nindent 4 }}
    - {name: tmp, emptyDir: {}}
  {{- with include "shoal.scheduling" $values.scheduling }}{{ nindent 2 . }}{{ end }}
{{- end -}}

{{/* The pod failure policy of a crawl. */}}
{{- define "shoal.ends" -}}
# A lost node or an evicted pod is no failure: the next pod resumes the crawl. Restarting does not help after a final
# failure (1) or a mistake in the command (2).
podFailurePolicy:
  rules:
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget, status: "True"}]
    - action: FailJob
      # Required by Kubernetes before 1.29.
      onPodConditions: []
      onExitCodes: {containerName: crawl, operator: In, values: [1, 2]}
{{- end -}}
