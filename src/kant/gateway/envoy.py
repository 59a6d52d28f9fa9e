"""The messages of Envoy's external processing that an endpoint picker needs.

The classes are created at import from a table of fields. Names and numbers are those of Envoy's
external_processor.proto, base.proto and http_status.proto (envoyproxy/data-plane-api, Apache-2.0) and of gRPC's
health.proto. All other parts of Envoy's messages are unknown fields, which protobuf keeps.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

STRUCT = struct_pb2.DESCRIPTOR.name
KINDS = {"bool": 8, "string": 9, "bytes": 12, "int32": 5, "uint32": 13}

# message: (field, number, type); a capitalized type is a message; "*": repeated; "?": part of a oneof.
EXT_PROC = {
    "HeaderValue": (("key", 1, "string"), ("value", 2, "string"), ("raw_value", 3, "bytes")),
    "HeaderMap": (("headers", 1, "*HeaderValue"),),
    "HeaderValueOption": (("header", 1, "HeaderValue"), ("append_action", 3, "int32")),
    "HeaderMutation": (("set_headers", 1, "*HeaderValueOption"), ("remove_headers", 2, "*string")),
    "Metadata": (("filter_metadata", 1, "*FilterMetadataEntry"),),
    "FilterMetadataEntry": (("key", 1, "string"), ("value", 2, "Struct")),
    "HttpHeaders": (("headers", 1, "HeaderMap"), ("end_of_stream", 3, "bool")),
    "HttpBody": (("body", 1, "bytes"), ("end_of_stream", 2, "bool")),
    "HttpTrailers": (("trailers", 1, "HeaderMap"),),
    "ProtocolConfiguration": (("request_body_mode", 1, "int32"), ("response_body_mode", 2, "int32")),
    "ProcessingRequest": (
        ("request_headers", 2, "?HttpHeaders"),
        ("response_headers", 3, "?HttpHeaders"),
        ("request_body", 4, "?HttpBody"),
        ("response_body", 5, "?HttpBody"),
        ("request_trailers", 6, "?HttpTrailers"),
        ("response_trailers", 7, "?HttpTrailers"),
        ("metadata_context", 8, "Metadata"),
        ("protocol_config", 11, "ProtocolConfiguration"),
    ),
    "StreamedBodyResponse": (("body", 1, "bytes"), ("end_of_stream", 2, "bool")),
    "BodyMutation": (
        ("body", 1, "?bytes"),
        ("clear_body", 2, "?bool"),
        ("streamed_response", 3, "?StreamedBodyResponse"),
    ),
    "CommonResponse": (
        ("status", 1, "int32"),
        ("header_mutation", 2, "HeaderMutation"),
        ("body_mutation", 3, "BodyMutation"),
        ("clear_route_cache", 5, "bool"),
    ),
    "HeadersResponse": (("response", 1, "CommonResponse"),),
    "BodyResponse": (("response", 1, "CommonResponse"),),
    "TrailersResponse": (("header_mutation", 1, "HeaderMutation"),),
    "HttpStatus": (("code", 1, "int32"),),
    "ImmediateResponse": (
        ("status", 1, "HttpStatus"),
        ("headers", 2, "HeaderMutation"),
        ("body", 3, "string"),
        ("details", 5, "string"),
    ),
    "ProcessingResponse": (
        ("request_headers", 1, "?HeadersResponse"),
        ("response_headers", 2, "?HeadersResponse"),
        ("request_body", 3, "?BodyResponse"),
        ("response_body", 4, "?BodyResponse"),
        ("request_trailers", 5, "?TrailersResponse"),
        ("response_trailers", 6, "?TrailersResponse"),
        ("immediate_response", 7, "?ImmediateResponse"),
        ("dynamic_metadata", 8, "Struct"),
    ),
    "HealthCheckRequest": (("service", 1, "string"),),
    "HealthCheckResponse": (("status", 1, "int32"),),
}  # fmt: skip

PACKAGE = "kant.gateway.envoy"
"""Not Envoy's own package name, so that its generated code can be loaded too; names are not on the wire."""


def _messages() -> dict[str, Any]:
    """Return a class for each message of the table."""
    file = descriptor_pb2.FileDescriptorProto(
        name="kant/gateway/envoy.proto", package=PACKAGE, syntax="proto3", dependency=[STRUCT]
    )
    for name, fields in EXT_PROC.items():
        message = file.message_type.add(name=name)
        if any(kind.startswith("?") for _, _, kind in fields):
            message.oneof_decl.add(name="choice")
        for field, number, kind in fields:
            plain = kind.lstrip("*?")
            row = message.field.add(name=field, number=number, label=3 if kind.startswith("*") else 1)
            if plain in KINDS:
                row.type = KINDS[plain]
            else:
                row.type = 11
                row.type_name = ".google.protobuf.Struct" if plain == "Struct" else f".{PACKAGE}.{plain}"
            if kind.startswith("?"):
                row.oneof_index = 0
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in EXT_PROC}


_CLASSES = _messages()
ProcessingRequest = _CLASSES["ProcessingRequest"]
ProcessingResponse = _CLASSES["ProcessingResponse"]
HealthCheckRequest = _CLASSES["HealthCheckRequest"]
HealthCheckResponse = _CLASSES["HealthCheckResponse"]
