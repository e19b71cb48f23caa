{{/*
Envoy's file. Listeners: gRPC for clients, health for probes, metrics. The last two have connections and upstream
pools of their own, few of both, and no overload stops them: clients that use up Envoy's connections, requests or
memory fail neither probes nor scrapes.
*/}}
{{- define "ringfill.envoyHttp" -}}
access_log: []
server_header_transformation: PASS_THROUGH
use_remote_address: true
skip_xff_append: false
max_request_headers_kb: {{ .limits.headersKb }}
request_headers_timeout: {{ .limits.headersTimeoutSeconds }}s
http_filters:
  - name: envoy.filters.http.router
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
{{- end }}

{{/* The most connections of a listener: its name, the number. */}}
{{- define "ringfill.envoyConnections" -}}
- name: envoy.filters.network.connection_limit
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit
    stat_prefix: {{ index . 0 }}
    max_connections: {{ int64 (index . 1) }}
{{- end }}

{{- define "ringfill.envoyConfig" -}}
{{- $envoy := .Values.envoy }}
{{- $limits := $envoy.limits }}
{{- $hcm := "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager" }}
admin:
  # On loopback alone; the listeners below pass on only what probes and Prometheus read.
  address:
    socket_address: {address: 127.0.0.1, port_value: {{ include "ringfill.envoyAdminPort" . }}}
overload_manager:
  refresh_interval: 0.25s
  resource_monitors:
    - name: envoy.resource_monitors.fixed_heap
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig
        max_heap_size_bytes: {{ int64 $envoy.maxHeapBytes }}
    # Above those of the listeners: connections that are about to be refused count too. A listener with
    # ignore_global_conn_limit would take this count down with each connection it closes.
    - name: envoy.resource_monitors.global_downstream_max_connections
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig
        max_active_downstream_connections: {{ add (int64 $limits.connections) 1024 }}
  actions:
    - name: envoy.overload_actions.shrink_heap
      triggers:
        - name: envoy.resource_monitors.fixed_heap
          threshold: {value: 0.9}
    - name: envoy.overload_actions.stop_accepting_requests
      triggers:
        - name: envoy.resource_monitors.fixed_heap
          threshold: {value: 0.95}
static_resources:
  listeners:
    - name: grpc
      address:
        socket_address: {address: {{ .Values.listenAddress | quote }}, port_value: {{ .Values.service.port }}}
      per_connection_buffer_limit_bytes: {{ int64 $limits.connectionWindowBytes }}
      filter_chains:
        - filters:
            {{- include "ringfill.envoyConnections" (list "grpc" $limits.connections) | trim | nindent 12 }}
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": {{ $hcm }}
                stat_prefix: grpc
                codec_type: HTTP2
                {{- include "ringfill.envoyHttp" (dict "limits" $limits) | trim | nindent 16 }}
                common_http_protocol_options:
                  idle_timeout: {{ $limits.connectionIdleSeconds }}s
                  max_headers_count: {{ $limits.headersCount }}
                request_timeout: {{ $limits.requestTimeoutSeconds }}s
                stream_idle_timeout: {{ $limits.streamIdleSeconds }}s
                http2_protocol_options:
                  max_concurrent_streams: {{ $limits.concurrentStreams }}
                  initial_stream_window_size: {{ int64 $limits.streamWindowBytes }}
                  initial_connection_window_size: {{ int64 $limits.connectionWindowBytes }}
                  # Finds clients that vanished without a word, as the daemon's pings do without Envoy.
                  connection_keepalive: {interval: 60s, timeout: 20s}
                route_config:
                  name: grpc
                  virtual_hosts:
                    - name: grpc
                      domains: ["*"]
                      routes:
                        - match: {prefix: /, grpc: {}}
                          # A long prompt takes as long as it takes; the daemon keeps the client's deadline.
                          route: {cluster: daemon, timeout: 0s}
    - name: health
      bypass_overload_manager: true
      address:
        socket_address: {address: {{ .Values.listenAddress | quote }}, port_value: {{ include "ringfill.healthPort" . }}}
      per_connection_buffer_limit_bytes: 32768
      filter_chains:
        - filters:
            {{- include "ringfill.envoyConnections" (list "health" 32) | trim | nindent 12 }}
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": {{ $hcm }}
                stat_prefix: health
                codec_type: AUTO
                {{- include "ringfill.envoyHttp" (dict "limits" $limits) | trim | nindent 16 }}
                common_http_protocol_options: {idle_timeout: 60s, max_headers_count: 32}
                request_timeout: 10s
                http2_protocol_options:
                  max_concurrent_streams: 4
                  initial_stream_window_size: 65535
                  initial_connection_window_size: 65535
                route_config:
                  name: health
                  virtual_hosts:
                    - name: health
                      domains: ["*"]
                      routes:
                        - match: {path: /grpc.health.v1.Health/Check, grpc: {}}
                          route: {cluster: daemon_health, timeout: 30s}
                        - match: {path: /ready}
                          route: {cluster: admin, timeout: 5s}
    {{- if .Values.metrics.enabled }}
    - name: metrics
      bypass_overload_manager: true
      address:
        socket_address: {address: {{ .Values.listenAddress | quote }}, port_value: {{ .Values.metrics.port }}}
      per_connection_buffer_limit_bytes: 1048576
      filter_chains:
        - filters:
            {{- include "ringfill.envoyConnections" (list "metrics" 32) | trim | nindent 12 }}
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": {{ $hcm }}
                stat_prefix: metrics
                codec_type: HTTP1
                {{- include "ringfill.envoyHttp" (dict "limits" $limits) | trim | nindent 16 }}
                common_http_protocol_options: {idle_timeout: 300s, max_headers_count: 32}
                request_timeout: 10s
                route_config:
                  name: metrics
                  virtual_hosts:
                    - name: metrics
                      domains: ["*"]
                      routes:
                        - match: {path: /metrics}
                          route: {cluster: daemon_metrics, timeout: 30s}
                        - match: {path: /envoy/metrics}
                          route: {cluster: admin, prefix_rewrite: /stats/prometheus, timeout: 30s}
    {{- end }}
  clusters:
    {{- include "ringfill.envoyCluster" (list . "daemon" "daemonPort" $limits.requests) | trim | nindent 4 }}
    {{- include "ringfill.envoyCluster" (list . "daemon_health" "daemonPort" 32) | trim | nindent 4 }}
    {{- if .Values.metrics.enabled }}
    {{- include "ringfill.envoyCluster" (list . "daemon_metrics" "daemonMetricsPort" 32 true) | trim | nindent 4 }}
    {{- end }}
    {{- include "ringfill.envoyCluster" (list . "admin" "envoyAdminPort" 32 true) | trim | nindent 4 }}
{{- end }}

{{/* A cluster: the root, its name, the name of the port, the most requests, and true for HTTP/1. */}}
{{- define "ringfill.envoyCluster" -}}
{{- $limits := (index . 0).Values.envoy.limits }}
{{- $requests := int64 (index . 3) -}}
- name: {{ index . 1 }}
  type: STATIC
  connect_timeout: {{ $limits.connectTimeoutSeconds }}s
  per_connection_buffer_limit_bytes: {{ int64 $limits.connectionWindowBytes }}
  circuit_breakers:
    thresholds:
      - max_connections: {{ $requests }}
        max_pending_requests: {{ $requests }}
        max_requests: {{ $requests }}
        # The daemon says itself when to try again.
        max_retries: 0
  {{- if lt (len .) 5 }}
  typed_extension_protocol_options:
    envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
      "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
      explicit_http_config:
        http2_protocol_options:
          initial_stream_window_size: {{ int64 $limits.streamWindowBytes }}
          initial_connection_window_size: {{ int64 $limits.connectionWindowBytes }}
  {{- end }}
  load_assignment:
    cluster_name: {{ index . 1 }}
    endpoints:
      - lb_endpoints:
          - endpoint:
              address:
                socket_address: {address: 127.0.0.1, port_value: {{ include (printf "ringfill.%s" (index . 2)) (index . 0) }}}
{{- end }}
