"""A FastAPI application that publishes: ``uvicorn web:app``. One producer for the whole process."""

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI, HTTPException

from broker import AsyncProducer, Message
from broker.client import ClientError


@contextlib.asynccontextmanager
async def life(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncProducer("web") as app.state.producer:
        yield


app = FastAPI(lifespan=life)


@app.post("/orders/{number}")
async def order(number: int, amount: int) -> dict[str, str]:
    message = Message("orders", str(amount).encode(), keys=f"order-{number}")
    try:
        result = await app.state.producer.send(message, key=str(number))
    except ClientError as failed:
        raise HTTPException(503, str(failed)) from failed
    return {"message_id": result.message_id}
