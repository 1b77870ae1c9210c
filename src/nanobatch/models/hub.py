"""Fetches a model from the Hugging Face hub, or says in one line why it cannot.

Knows `huggingface_hub` (imported when needed) and its cache; `HF_HUB_OFFLINE`, `HF_HOME` and
tokens mean what they mean to that library. Imports no torch.
"""

from pathlib import Path

from nanobatch.errors import ModelError

WANTED_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model", "vocab.txt")
UNWANTED_FILES = ("*/*", "consolidated*")  # other formats and second copies of the weights


def download_model(model_id: str) -> Path:
    """Return the local folder of a model, downloading what the cache lacks.

    Raises:
        ModelError: There is no such model, no access to it, or no network.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        folder = snapshot_download(
            model_id,
            allow_patterns=list(WANTED_FILES),
            ignore_patterns=list(UNWANTED_FILES),
        )
    except GatedRepoError as error:
        raise ModelError(
            f"access to {model_id} on the Hugging Face hub is restricted",
            hint="accept its terms on its page, then `hf auth login`",
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"no model {model_id}: neither a local folder nor on the Hugging Face hub",
            hint="check the spelling; a private model needs `hf auth login`",
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"no local folder {model_id}, and it is not in the Hugging Face cache "
            "and the hub cannot be reached",
            hint="check the spelling and the network, or give a local folder",
        ) from error
    except Exception as error:  # the hub's transports have changed and share no base class
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"downloading {model_id} from the Hugging Face hub failed: {reason}",
            hint="run the same line again, or give a local folder",
        ) from error
    return Path(folder)
