"""The server on Ray Serve: as many replicas of the same application as there are requests for.

serve run mxspec.serve.ray_app:build bundle=/models/my.bundle replicas=2 max_replicas=8 cpus=16
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from starlette.types import ASGIApp

from mxspec.formats.errors import MxspecError
from mxspec.formats.validation import first_problem
from mxspec.runtime.settings import TypedControlTokens
from mxspec.serve.app import Access, build_app
from mxspec.serve.engines.models import models_of
from mxspec.serve.engines.service import Service
from mxspec.serve.http.keys import read_keys
from mxspec.serve.http.limits import Limits

SESSIONS = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"


class Arguments(BaseModel):
    """The arguments, given to `serve run` as name=value and in a Serve config as `args`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bundle: str  # a folder that every node sees under this path
    replicas: PositiveInt = 1  # least number of replicas
    max_replicas: PositiveInt | None = None  # largest number; None: `replicas`, without autoscaling
    cpus: PositiveInt = 1  # CPUs of a replica, and threads of its engine
    slots: PositiveInt = 8  # texts that a replica writes at a time
    queue: int = Limits().queue  # texts that wait in a replica
    sessions: bool = False  # send requests of one x-session-id to one replica, which has read the same chat before
    typed_control_tokens: TypedControlTokens = "control"  # what <|im_end|> in a message is
    api_key_file: str | None = None  # a path that exists on every node


def service_of(arguments: Arguments) -> Service:
    """The service of a replica, whose models are not loaded yet; raises BundleError."""
    return Service(
        models_of([Path(arguments.bundle)]),
        slots=arguments.slots,
        threads=arguments.cpus,
        limits=Limits(queue=arguments.queue),
        typed_control_tokens=arguments.typed_control_tokens,
    )


@serve.ingress()
class Server:
    """A replica: ready once its models are loaded, and healthy unless they cannot be loaded."""

    def __init__(self, arguments: Arguments) -> None:
        self._access = Access(keys=[] if arguments.api_key_file is None else read_keys(Path(arguments.api_key_file)))
        self._service = service_of(arguments)
        self._service.load()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return build_app(self._service, self._access)


def build(arguments: Mapping[str, Any]) -> serve.Application:
    """The application that Ray Serve runs; raises MxspecError for unknown or invalid arguments."""
    try:
        given = Arguments.model_validate(arguments)
    except ValidationError as error:
        raise MxspecError(first_problem(error, Arguments)) from None
    options: dict[str, Any] = {
        "num_replicas": given.replicas,
        "ray_actor_options": {"num_cpus": given.cpus},
        "max_ongoing_requests": given.slots + given.queue,
        "graceful_shutdown_timeout_s": Limits().grace_seconds,
    }
    if given.max_replicas is not None:
        del options["num_replicas"]
        options["autoscaling_config"] = AutoscalingConfig(
            min_replicas=given.replicas, max_replicas=given.max_replicas, target_ongoing_requests=given.slots
        )
    if given.sessions:
        options["request_router_config"] = RequestRouterConfig(request_router_class=SESSIONS)
    return serve.deployment(Server, name="mxspec").options(**options).bind(given)
