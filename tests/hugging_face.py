"""Small random models of Hugging Face's architectures, from configurations alone, each with a batch it takes.

A configuration is shrunk by the names of its attributes (SIZES); OVERRIDES mends what then does not fit.
A multimodal model is built whole; most are given text alone.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import warnings
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto import modeling_auto as auto

transformers.logging.set_verbosity_error()

BATCH, LENGTH, LAYERS, VOCAB, IMAGE = 2, 16, 3, 128, 64
TEXT = (33, 53)  # the ids of a batch: no special token of any type is among them
FIRST_SPECIAL = 96  # special tokens beyond the small vocabulary move to its end

# The size of an attribute whose whole name matches, unless it is smaller already; the first match counts.
SIZES = {
    re.compile(pattern): size
    for pattern, size in {
        r".*vocab_size.*|codebook_size|n_words|\w+_hash_byte_group_vocab|num_hash_buckets": VOCAB,
        r"(num_|n_)?(\w+_)?layers?|depth|num_self_attends_per_block": LAYERS,
        r"depths|num_block_repeats|block_sizes|stage_num_blocks|stage_numb_of_layers|n_attn_blocks": 1,
        r"(\w+_)?(num_)?(key_value|kv)_(attention_)?heads|kv_n_heads": 2,
        r"(\w+_)?heads?": 4,
        r"qk_rope_head_dim|rotary_dim": 8,
        r"(\w+_)?head_dim|d_kv|dim_head|kv_channels|attention_head_size|d_head": 16,
        r"index_topk|(\w+_)?rank": 16,
        r"(\w+_)?(intermediate|ffn|ff|inner|feed_?forward|linear_units)(_hidden)?(_size|_dim|_mlp)?"
        r"|d_inner|d_ff|dff|dim_ff|dim_feedforward": 48,
        r"(\w+_)?hidden_(size|dim)s?(_global)?|d_model|d_latents|n_embd|(\w+_)?emb(ed)?_dims?|dim"
        r"|(\w+_)?projection_dim|(\w+_)?embedding_(size|dim)|(\w+_)?feature_size|conv_dim|tdnn_dim": 64,
        r"(\w+_)?experts": 4,
        r"num_experts_per_tok|moe_k|moe_topk|moe_top_k": 2,
        r"n_group|topk_group|n_groups|o_groups": 1,
        r"(\w+_)?max_(\w+_)?position(_embedding)?s|n_positions|n_ctx|max_seq_len|context_length": 128,
        r"sliding_window|attention_window|local_attention|attention_window_size|(\w+_)?chunk_size": 8,
        r"(\w+_)?image_size|img_size|crop_size": 32,
        r"patch_size": 8,
        r"num_queries|num_latents": 10,
        r"num_frames|frames_per_clip": 4,
    }.items()
}

# fmt: off
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
STAGES = ["stage1", "stage2", "stage3", "stage4"]
DETECTOR = {"encoder_in_channels": [32, 32, 64], "decoder_in_channels": [64] * 3}
# By model type, several in one key. A dictionary for a sub-configuration changes it, and one that
# names a model_type replaces it.
OVERRIDES: dict[str, dict[str, Any]] = {
    # language models
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"num_hidden_layers": LAYERS},
    "cohere_compass_text": {"rope_parameters": {"full_attention": MROPE, "sliding_attention": MROPE}},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 48},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note_audio_encoder": {"adapter_input_size": 64, "adapter_out_dim": 64},
    "dots3_note_text": {"per_layer_config": {}, "head_dim": 24, "num_key_value_heads": 4},
    "dots3_note_vision_encoder": {"per_layer_config": {}, "adapter_in_dim": 64, "adapter_out_dim": 64},
    "ernie4_5_vl_moe_text": {"rope_parameters": MROPE | {"mrope_section": [3, 3, 2]},
        "moe_intermediate_size": [48, 48]},
    "gemma3n_text": {"num_kv_shared_layers": 0,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"]},
    "glm4v_moe_text": {"rope_parameters": MROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}},
    "glm4v_text glm_image_text glm_ocr_text qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text"
    " cosmos3_edge_text paddleocr_vl_text": {"rope_parameters": MROPE},
    "gpt_neo": {"attention_types": [[["global", "local", "global"], 1]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "hunyuan_v1_dense hunyuan_v1_moe ministral": {"head_dim": 16},
    "hunyuan_vl_text": {"head_dim": 16, "rope_parameters": MROPE},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "longcat_flash": {"head_dim": 8, "zero_expert_num": 2},
    "mamba2": {"num_heads": 8},
    "nemotron": {"num_key_value_heads": 2},
    "phi4_multimodal_audio": {"ext_pw_out_channel": 64, "depthwise_separable_out_channel": 64,
        "nemo_conv_channels": 64, "num_blocks": 2},
    "qwen2_5_omni_thinker qwen3_omni_moe_thinker": {"vision_start_token_id": 100},
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16,
        "indexer_budget": 8, "indexer_compress_ratio": 4},
    "step3p5": {"sliding_window": 8},
    "xlstm": {"qk_dim_factor": 1.0},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid", "hybrid"]},
    # encoders and encoder-decoders
    "align": {"projection_dim": 80, "vision_config": {"initializer_range": 0.2}},
    "align_vision_model efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.5,
        "hidden_dim": 320},
    "canine": {"local_transformer_stride": 8},
    "esm": {"vocab_size": VOCAB, "pad_token_id": 1, "mask_token_id": 32},
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 16, "input_size": 32},
    "lilt": {"hidden_size": 48},
    "lxmert": {"visual_feat_dim": 32},
    "markuplm": {"max_depth": 8},
    "reformer": {"axial_pos_shape": [4, 4], "axial_pos_embds_dim": [16, 48], "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8, "attn_layers": ["local", "lsh", "local"]},
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}},
    "xmod": {"default_language": "en_XX"},
    # vision
    "bit": {"num_groups": 4},
    "conditional_detr dab-detr deformable_detr detr table-transformer":
        {"backbone_config": {"model_type": "resnet", "out_features": STAGES[1:]}},
    "cosmos3_edge_vision siglip2_vision_model": {"num_patches": 16},
    "cvt": {"num_heads": [1, 2, 2], "embed_dim": [16, 32, 32]},
    "d_fine deimv2 pp_doclayout_v4": DETECTOR | {"backbone_config": {"out_features": STAGES[1:]}},
    "dinov3_convnext": {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 2, 1]},
    "donut-swin maskformer-swin swin swinv2": {"num_heads": [1, 2, 2, 2], "embed_dim": 16, "window_size": 2,
        "image_size": 64},
    "focalnet": {"hidden_sizes": [16, 32, 64, 64], "embed_dim": 16},
    "got_ocr2_vision sam_hq_vision_model sam_vision_model": {"output_channels": 64, "num_pos_feats": 32,
        "global_attn_indexes": [1], "window_size": 2},
    "granite4_vision": {"deepstack_layer_map": [[0, 0]], "downsample_rate": "1/2"},
    "hgnet_v2": {"stem_channels": [3, 16, 16], "stage_in_channels": [16, 16, 32, 32],
        "stage_mid_channels": [16] * 4, "stage_out_channels": [16, 32, 32, 64],
        "hidden_sizes": [16, 32, 32, 64]},
    "hiera": {"embed_dim": 16},
    "levit": {"image_size": 64, "patch_size": 16},
    "lightglue": {"keypoint_detector_config": {"descriptor_decoder_dim": 64}, "descriptor_dim": 64},
    "lw_detr": {"backbone_config": {"out_features": ["stage2", "stage3"], "window_block_indices": [0]},
        "projector_scale_factors": [1.0]},
    "lw_detr_vit": {"num_windows": 4},
    "mask2former": {"backbone_config": {"out_features": STAGES}},
    "mgp-str": {"num_bpe_labels": 64, "num_wordpiece_labels": 64},
    "mobilenet_v1 mobilenet_v2": {"depth_multiplier": 0.25},
    "mobilevitv2": {"width_multiplier": 0.25, "image_size": 64},
    "oneformer": {"backbone_config": {"out_features": STAGES}, "mask_dim": 64},
    "pp_doclayout_v3": DETECTOR | {"backbone_config": {"out_features": STAGES}, "x4_feat_dim": 16},
    "pp_lcnet_v3": {"scale": 0.25},
    "pp_lcnet_v4": {"stem_channels": [3, 16, 16], "block_configs": [[[3, 16, 16, 1, True]],
        [[3, 16, 16, 1, False]], [[3, 16, 32, [2, 1], False]], [[3, 32, 64, [2, 1], True]]]},
    "radio": {"max_img_size": 64},
    "rt_detr rt_detr_v2": {"backbone_config": {"out_features": STAGES[1:]}, "encoder_in_channels": [64] * 3,
        "decoder_in_channels": [64] * 3},
    "sam2_hiera_det_model": {"image_size": [32, 32], "hidden_size": 8, "blocks_per_stage": [1, 1, 2, 1],
        "embed_dim_per_stage": [8, 16, 32, 64], "num_attention_heads_per_stage": [1, 2, 2, 2],
        "window_size_per_stage": [8, 4, 2, 1], "global_attention_blocks": [3]},
    "sam2_vision_model": {"backbone_channel_list": [64, 32, 16, 8], "backbone_feature_sizes": [[8, 8], [4, 4],
        [2, 2]]},
    "sam_hq_mask_decoder": {"vit_dim": 64},
    "sapiens2": {"num_key_value_heads_per_layer": [4, 2, 4]},
    "seggpt": {"image_size": [64, 32], "intermediate_hidden_state_indices": [1, 2], "merge_index": 0},
    "shieldgemma2": {"yes_token_index": 5, "no_token_index": 6, "mm_tokens_per_image": 4},
    "uvdoc": {"backbone_config": {"out_features": STAGES[:3]}, "bridge_connector": [32, 32],
        "out_point_positions2D": [[32, 8], [8, 2]]},
    "uvdoc_backbone": {"resnet_head": [[3, 8], [8, 8]], "resnet_configs": [[[8, 8, 1, False]],
        [[8, 16, 1, True]], [[16, 32, 1, True]]], "stage_configs": [[[32, 1]], [[32, 2]], [[32, 3]]]},
    "videoprism_vision_model": {"tubelet_size": [1, 8, 8]},
    "vivit": {"tubelet_size": [2, 8, 8]},
    # sound and time series
    "encodec": {"hidden_size": 32, "num_filters": 4},
    "informer time_series_transformer": {"prediction_length": 4},
    "lasr_encoder": {"subsampling_conv_channels": 16, "conv_kernel_size": 31},
    "nemotron_asr_streaming_encoder parakeet_encoder": {"subsampling_conv_channels": 16},
}

PICTURE = {"pixel_values": (BATCH, 3, 32, 32)}
VIDEO = (BATCH, 4, 3, 32, 32)
GRID = {"grid_thw": [[1, 4, 4]] * BATCH}
# By model type: inputs beyond those of _batch. A tuple is the shape of random numbers, a list the values.
INPUTS: dict[str, dict[str, Any]] = {
    "aimv2 align altclip blip bridgetower chinese_clip clip clipseg flava groupvit layoutlmv3 metaclip_2"
    " owlv2 owlvit sam sam3 sam3_lite_text sam_hq siglip vilt vision-text-dual-encoder": PICTURE,
    "audio-spectrogram-transformer": {"input_values": (BATCH, 1024, 128)},
    "audioflamingo3_encoder": {"input_features": (BATCH, 128, 256),
        "input_features_mask": [[1] * 256] * BATCH},
    "blip_2_qformer": {"query_embeds": (BATCH, 4, 64), "encoder_hidden_states": (BATCH, 4, 64)},
    "bros": {"bbox": [[[0.1] * 8] * LENGTH] * BATCH},
    "canary cohere_asr gemma4_audio lasr_ctc lasr_encoder nemotron3_5_transcribe_asr_audio"
    " nemotron3_5_transcribe_audio nemotron3_diarization nemotron3_diarization_audio":
        {"input_features": (BATCH, 64, 128)},
    "cohere_compass_vision exaone4_5_vision glm4v_moe_vision glm4v_vision glm5_next_vision glm_ocr_vision"
    " qwen2_5_vl_vision qwen3_5_moe_vision qwen3_5_vision qwen3_vl_moe_vision qwen3_vl_vision"
    " qwen4_exp_vision": GRID | {"hidden_states": (32, 384)},
    "cosmos3_edge_vision glm_image_vision hunyuan_vl_vision": GRID | {"pixel_values": (32, 192)},
    "data2vec-audio hubert moonshine sew sew-d unispeech unispeech-sat wav2vec2 wav2vec2-conformer wavlm":
        {"input_values": (BATCH, 8000)},
    "decision_transformer": {"states": (BATCH, 4, 17), "actions": (BATCH, 4, 4),
        "returns_to_go": (BATCH, 4, 1), "timesteps": [[0, 1, 2, 3]] * BATCH,
        "attention_mask": [[1] * 4] * BATCH},
    "encodec": {"input_values": (BATCH, 1, 320)},
    "fun_asr_nano_encoder": {"input_features": (BATCH, 16, 560), "input_features_mask": [[1] * 16] * BATCH},
    "gemma3n_audio": {"audio_mel": (BATCH, 64, 128), "audio_mel_mask": [[False] * 64] * BATCH},
    "gemma4_vision": {"pixel_values": (BATCH, 36, 192),
        "pixel_position_ids": [[[x, y] for y in range(6) for x in range(6)]] * BATCH},
    "glmasr_encoder qwen2_audio_encoder voxtral_encoder": {"input_features": (BATCH, 128, 256)},
    "granite_speech5_ctc granite_speech5_encoder": {"input_features": (BATCH, 64, 320)},
    "grounding-dino mm-grounding-dino": {"pixel_values": (BATCH, 3, 128, 128)},
    "informer time_series_transformer": {"past_values": (BATCH, 11), "past_time_features": (BATCH, 11, 0),
        "past_observed_mask": [[1.0] * 11] * BATCH, "future_values": (BATCH, 4),
        "future_time_features": (BATCH, 4, 0)},
    "kimi_k25_vision": GRID | {"pixel_values": (32, 3, 8, 8)},
    "lfm3_vl_vision muse_glimmer_vision muse_spark_vision": GRID | {"pixel_values": (32, 384)},
    "lightglue": {"pixel_values": (1, 2, 3, 64, 64)},
    "lxmert": {"visual_feats": (BATCH, 4, 32), "visual_pos": (BATCH, 4, 4)},
    "minicpm_ocr_vision minicpmv4_7_vision": {"pixel_values": (1, 3, 8, 256),
        "target_sizes": [[4, 4]] * BATCH},
    "moss_transcribe_diarize_audio": {"input_features": (BATCH, 80, 256)},
    "musicgen musicgen_melody": {"input_ids": [[5, 6, 7, 8] * 4] * (4 * BATCH)},
    "nemotron_asr_streaming_encoder parakeet_ctc parakeet_encoder": {"input_features": (BATCH, 64, 80)},
    "oneformer": {"task_inputs": [[5] * 77] * BATCH},
    "patchtsmixer patchtst": {"past_values": (BATCH, 32, 1)},
    "perceiver": {"inputs": (BATCH, LENGTH, 64)},
    "pp_ocrv5_mobile_rec": {"pixel_values": (BATCH, 3, 96, 96)},
    "qwen3_asr_encoder": {"input_features": (BATCH, 128, 100), "input_features_mask": [[1] * 100] * BATCH},
    "seggpt": dict.fromkeys(("pixel_values", "prompt_pixel_values", "prompt_masks"), (BATCH, 3, 32, 32)),
    "shieldgemma2": PICTURE | {"input_ids": [[FIRST_SPECIAL] * 4 + [10] * 12] * BATCH},
    "siglip2 siglip2_vision_model": {"pixel_values": (BATCH, 16, 192),
        "pixel_attention_mask": [[1] * 16] * BATCH, "spatial_shapes": [[4, 4]] * BATCH},
    "speech_to_text": {"input_features": (BATCH, 64, 80), "attention_mask": [[1] * 64] * BATCH},
    "speecht5": {"input_values": (BATCH, LENGTH, 64), "decoder_input_values": (BATCH, LENGTH, 64)},
    "timesfm timesfm2_5": {"past_values": (BATCH, 64), "past_values_padding": [[0.0] * 64] * BATCH,
        "freq": [[0]] * BATCH},
    "timesformer videomae vivit xclip": {"pixel_values": VIDEO},
    "udop": {"bbox": [[[0.1] * 4] * LENGTH] * BATCH},
    "video_llama_3_vision": GRID | {"pixel_values": (32, 192), "merge_sizes": [2] * BATCH},
    "videoprism videoprism_vision_model vjepa2": {"pixel_values_videos": VIDEO},
    "voxtral_realtime_encoder": {"input_features": (BATCH, 128, 64)},
    "wav2vec2-bert": {"input_features": (BATCH, LENGTH, 160)},
}

UNBUILDABLE = {
    name: reason
    for reason, names in {
        "needs timm":
        "edgetam edgetam_vision_model fast_vlm gemma3n gemma3n_vision omdet-turbo pe_audio_video"
        " pe_audio_video_encoder pe_video pe_video_encoder perception_lm timm_backbone timm_wrapper",
        "needs natten": "dinat",
        "needs detectron2": "layoutlmv2",
        "needs torchaudio": "higgs_audio_v2_tokenizer",
        "needs the states of the model it drafts for":
        "gemma4_assistant gemma4_unified_assistant muse_glimmer_assistant",
        "needs a video session": "edgetam_video sam2_video sam3_tracker_video sam3_video",
        "needs a processor, which places images in the text":
        "blip-2 idefics instructblip instructblipvideo kosmos-2 tvp",
        "has no forward": "bark glm_image_vqmodel",
        "transformers maps it to a class that does not exist": "voxtral_realtime_text",
        "speech, codec, robot or series: inputs or sizes not worked out":
        "autoformer clap clvp csm dac dia fastspeech2_conformer fastspeech2_conformer_with_hifigan"
        " fun_asr_nano gradium_phonon_tts kyutai_speech_to_text mimi mimi_decoder mimi_encoder"
        " moonshine_streaming muse_spark muse_spark_audio nemotron3_5_asr"
        " nemotron3_5_transcribe_word_timestamp nemotron_asr_streaming neucodec parakeet_rnnt parakeet_tdt"
        " pe_audio pe_audio_encoder pi0 pocket_tts pocket_tts_audio_tokenizer"
        " pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder seamless_m4t seamless_m4t_v2"
        " univnet vibevoice vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_decoder"
        " vibevoice_acoustic_tokenizer_encoder vibevoice_asr vits voxtral_realtime xcodec xcodec2",
        "no consistent small sizes found":
        "chameleon deepseek_ocr2 depth_pro efficientloftr inkling2_vision janus molmo2 pp_ocrv6_medium_det"
        " pp_ocrv6_small_det sam2 sam3_tracker unlimited_ocr",
    }.items()
    for name in names.split()
}
# fmt: on

MAPPINGS = (
    auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    auto.MODEL_MAPPING,
    auto.MODEL_FOR_BACKBONE_MAPPING,
)
CAUSAL = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
# Many of these have a causal head too, on a part of the model: they are built whole.
ENCODERS = {*auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, *auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
VISION = {*auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, *auto.MODEL_FOR_BACKBONE_MAPPING_NAMES}
NAMES = sorted({*CAUSAL, *VISION, *auto.MODEL_MAPPING_NAMES} - UNBUILDABLE.keys())


def build(name: str, *, training: bool = False) -> tuple[nn.Module, dict[str, Tensor]]:
    """The small model of a type, the same random one each time, and a batch for its forward."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        config = small_config(CONFIG_MAPPING[name])
        mappings = (auto.MODEL_MAPPING, *MAPPINGS) if name in ENCODERS else MAPPINGS
        found = next(filter(None, (mapping.get(type(config), None) for mapping in mappings)))
        model_class = found[0] if isinstance(found, (list, tuple)) else found
        if name in CAUSAL and not isinstance(config, model_class.config_class):
            config = config.get_text_config(decoder=True)  # the language model of a multimodal one
        model = model_class(config).train(training)
        return model, _batch(model, _entry(INPUTS, name))


def small_config(config_class: type, like: Any = None, **changes: Any) -> PreTrainedConfig:
    """Shrink the defaults, or `like`; attributes that the class derives from others are left to it."""
    plain = config_class()
    defaults, values = vars(plain), vars(plain if like is None else like)
    layers = values.get("num_hidden_layers") or 0
    changes = _entry(OVERRIDES, config_class.model_type) | changes
    small = dict(changes)
    for field in dataclasses.fields(config_class):
        name, value, change = field.name, values.get(field.name), changes.get(field.name)
        if isinstance(change, dict) and "model_type" in change:
            rest = {key: entry for key, entry in change.items() if key != "model_type"}
            small[name] = small_config(CONFIG_MAPPING[change["model_type"]], **rest)
        elif isinstance(value, PreTrainedConfig):
            small[name] = small_config(type(value), value, **(change or {}))
        elif name in changes:
            continue
        elif "layer" in name and isinstance(value, (list, tuple)) and len(value) == layers > LAYERS:
            small[name] = [*dict.fromkeys(value), *[value[-1]] * LAYERS][:LAYERS]  # every kind of layer
        else:
            full = name == "num_key_value_heads" and value == values.get("num_attention_heads")
            value = field.default if value == defaults.get(name) else value
            value = _shrunk("num_attention_heads" if full else name, value)
            if value is not dataclasses.MISSING and value != field.default:
                small[name] = value
    return config_class(**small)


def _shrunk(name: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_shrunk(name, item) for item in value)
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if re.search(r"token_(id|index)|_token$", name):
        return value if value < VOCAB else FIRST_SPECIAL + value % (VOCAB - FIRST_SPECIAL)
    return next((min(value, size) for pattern, size in SIZES.items() if pattern.fullmatch(name)), value)


def _entry(table: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    return next((entry for names, entry in table.items() if name in names.split()), {})


def _batch(model: Any, inputs: dict[str, Any]) -> dict[str, Tensor]:
    config, takes = model.config, inspect.signature(model.forward).parameters
    batch = {}
    if "input_ids" in takes:
        batch["input_ids"] = _tokens()
        if "attention_mask" in takes:
            batch["attention_mask"] = torch.ones(BATCH, LENGTH, dtype=torch.long)
    elif "pixel_values" in takes:
        size = getattr(config, "image_size", None) or IMAGE
        height, width = (size, size) if isinstance(size, int) else size
        batch["pixel_values"] = torch.randn(BATCH, 3, height, width)
    if "decoder_input_ids" in takes and config.is_encoder_decoder:
        batch["decoder_input_ids"] = _tokens()
    for name, value in inputs.items():
        batch[name] = torch.randn(value) if isinstance(value, tuple) else torch.tensor(value)
    return batch


def _tokens() -> Tensor:
    return torch.randint(*TEXT, (BATCH, LENGTH))
