"""The health service, called in process with the registry of the server."""

import asyncio
from types import SimpleNamespace

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from pipework.errors import UnknownModelError
from pipework.serve.inference_protocol.grpc import Health
from pipework.serve.models.registry import Models

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING

SERVICE = "inference.GRPCInferenceService"


def version():
    return SimpleNamespace(
        name="topics",
        version="1",
        alive=True,
        scheduler=SimpleNamespace(ready=True, fault="", oldest_batch=None),
        close=lambda: None,
    )


def run(use, *versions):
    """Run `use(health, models, ending)`."""

    async def within():
        with Models(versions) as models:
            ending = asyncio.Event()
            health = Health(models, (SERVICE,), ending)
            return await asyncio.wait_for(use(health, models, ending), 20)

    return asyncio.run(within())


async def check(health, service=""):
    return (await health.Check(HealthCheckRequest(service=service), None)).status


@pytest.mark.parametrize("service", ["", SERVICE])
def test_the_status_follows_the_readiness_of_the_models(service):
    served = version()

    async def use(health, models, _):
        ready = await check(health, service)
        served.scheduler.ready = False
        reopened = await check(health, service)
        served.scheduler.ready = True
        models.stopping.set()
        return ready, reopened, await check(health, service)

    assert run(use, served) == (SERVING, NOT_SERVING, NOT_SERVING)


def test_a_server_without_models_is_not_serving():
    async def use(health, *_):
        return await check(health)

    assert run(use) == NOT_SERVING


def test_an_unknown_service_is_reported_in_part():
    async def use(health, *_):
        await check(health, "other" * 100)

    with pytest.raises(UnknownModelError, match="service 'other") as caught:
        run(use, version())
    assert len(str(caught.value)) < 100


def test_a_watch_yields_each_change_and_ends_with_the_server():
    served = version()

    async def use(health, models, ending):
        seen = []
        async for response in health.Watch(HealthCheckRequest(service=SERVICE), None):
            seen.append(response.status)
            if len(seen) < 3:
                served.scheduler.ready = not served.scheduler.ready
            else:
                models.stopping.set()
                ending.set()
        return seen

    assert run(use, served) == [SERVING, NOT_SERVING, SERVING, NOT_SERVING]


def test_a_watch_of_an_unknown_service_waits_for_it():
    async def use(health, *_):
        watch = health.Watch(HealthCheckRequest(service="other"), None)
        return (await anext(watch)).status

    assert run(use, version()) == HealthCheckResponse.SERVICE_UNKNOWN
