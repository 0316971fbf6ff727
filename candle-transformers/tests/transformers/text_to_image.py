"""Writes text_to_image.json: tiny Stable Diffusions, their files as diffusers 0.39 writes them, and the images that its pipeline makes, for
tests/cases/text_to_image.rs.

usage: text_to_image.py [FOLDER], with torch, transformers and diffusers installed, beside generate.py, whose rule makes the weights. The checkpoints stay in
FOLDER.
"""
import json, os, sys, tempfile
import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))


def from_generate(*names):
    """The functions of generate.py, without its cases."""
    source = open(f"{HERE}/generate.py").read()
    source = source[: source.index("CASES, FAILED")]
    space = {"__file__": f"{HERE}/generate.py"}
    exec(compile(source, "generate.py", "exec"), space)
    return [space[name] for name in names]


numbers, weight, rounded = from_generate("numbers", "weight", "rounded")

from diffusers import AutoencoderKL, DDIMScheduler, EulerDiscreteScheduler, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel

SIDE, TOKENS = 64, 7
# Of the image's numbers, which a file would be too large for.
EVERY = 13
IDS = [[1, 2, 2, 2, 2, 2, 2], [1, 9, 17, 25, 4, 2, 2]]


def ruled(model, folder, file):
    """The model with the rule's weights, by the names of the published files."""
    model.save_pretrained(folder)
    found = load_file(f"{folder}/{file}")
    prefix = "text_model." if isinstance(model, CLIPTextModel) and not any(k.startswith("text_model.") for k in found) else ""
    made = {k: torch.tensor(np.asarray(weight(prefix + k, tuple(v.shape)))) for k, v in found.items()}
    save_file(made, f"{folder}/{file}", metadata={"format": "pt"})
    model = type(model).from_pretrained(folder).float().eval()
    # What this project reads.
    save_file({prefix + k: v for k, v in made.items()}, f"{folder}/{file}", metadata={"format": "pt"})
    return model, json.load(open(f"{folder}/config.json"))


def case(folder, act, heads, linear, scheduler, steps, guidance):
    torch.manual_seed(0)
    text, text_config = ruled(CLIPTextModel(CLIPTextConfig(
        vocab_size=514, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=77, hidden_act=act, bos_token_id=512, eos_token_id=513, pad_token_id=513)), f"{folder}/text_encoder", "model.safetensors")
    unet, unet_config = ruled(UNet2DConditionModel(
        sample_size=SIDE // 8, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8, cross_attention_dim=32,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=heads, use_linear_projection=linear), f"{folder}/unet", "diffusion_pytorch_model.safetensors")
    vae, vae_config = ruled(AutoencoderKL(
        block_out_channels=(8, 8, 16, 16), layers_per_block=1, norm_num_groups=4, sample_size=SIDE,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4), f"{folder}/vae",
        "diffusion_pytorch_model.safetensors")
    scheduler.save_pretrained(f"{folder}/scheduler")
    scheduler_config = json.load(open(f"{folder}/scheduler/scheduler_config.json"))
    # This project runs DDIM for PNDM, with the numbers of its file.
    if isinstance(scheduler, PNDMScheduler):
        scheduler = DDIMScheduler.from_config(scheduler.config, clip_sample=False)
    pipe = StableDiffusionPipeline(vae=vae, text_encoder=text, tokenizer=None, unet=unet, scheduler=scheduler, safety_checker=None,
                                   feature_extractor=None, requires_safety_checker=False)
    pipe.set_progress_bar_config(disable=True)
    noise = torch.tensor(numbers("noise", 4 * (SIDE // 8) ** 2)).reshape(1, 4, SIDE // 8, SIDE // 8)
    with torch.no_grad():
        without, with_ = text(torch.tensor(IDS))[0].split(1)
        image = pipe(prompt_embeds=with_, negative_prompt_embeds=without, latents=noise, num_inference_steps=steps, height=SIDE, width=SIDE,
                     guidance_scale=guidance, output_type="pt").images
    print(folder, "mean", float(image.mean()), "deviation", float(image.std()), "at the ends", float(((image == 0) | (image == 1)).float().mean()))
    return dict(text_encoder=text_config, unet=unet_config, vae=vae_config, scheduler=scheduler_config, ids=IDS, side=SIDE, steps=steps,
                guidance=guidance, every=EVERY, image=rounded(image.flatten()[::EVERY]))


BETAS = dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
with tempfile.TemporaryDirectory() as folder:
    folder = sys.argv[1] if len(sys.argv) > 1 else folder
    cases = {
        "1.5": case(f"{folder}/one", "quick_gelu", 4, False, PNDMScheduler(steps_offset=1, skip_prk_steps=True, set_alpha_to_one=False, **BETAS), 3, 7.5),
        "2.1": case(f"{folder}/two", "gelu", (2, 4), True, DDIMScheduler(steps_offset=1, clip_sample=False, set_alpha_to_one=False,
                                                                          prediction_type="v_prediction", **BETAS), 4, 3.0),
        "turbo": case(f"{folder}/turbo", "gelu", (2, 4), True, EulerDiscreteScheduler(steps_offset=1, timestep_spacing="trailing", **BETAS), 1, 1.0),
    }
with open(f"{HERE}/text_to_image.json", "w") as file:
    json.dump(cases, file)
    file.write("\n")
