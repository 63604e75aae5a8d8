"""What a user can say about GPUs on spans."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class GpuSpansConfig(BaseModel):
    """Whether spans say what their process's GPU went through."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(True, description="Costs nothing while no process uses a GPU.")
