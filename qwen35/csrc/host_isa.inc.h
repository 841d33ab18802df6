/* The body of host_portable.c, host_avx2.c and host_avx512.c, which define HOST_ISA and HOST_NAME. */
#include "host_ops.h"
#include "host_pool.h"
#include "host_vec.h"

#include "host_gemm.inc.h"

#include "host_elem.inc.h"

#include "host_attn.inc.h"
#include "host_attn_prompt.inc.h"
#include "host_delta.inc.h"
#include "host_delta_prompt.inc.h"
#include "host_vision.inc.h"
#include "host_full_attn.inc.h"

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define TEXT2(a) #a
#define TEXT(a) TEXT2(a)

const struct host_ops JOIN(host_ops_, HOST_NAME) = {
    .name = TEXT(HOST_NAME),
    .vector = VL,
    .fma_loop = fma_loop,
    .norm_task = norm_task,
    .swiglu_pairs = swiglu_pairs,
    .bf16_to_f32 = bf16_to_f32,
    .f32_to_bf16 = f32_to_bf16,
    .matmul = matmul,
    .delta_prefill = delta_prefill,
    .delta_step = delta_step,
    .delta_write = delta_write,
    .attn_append = attn_append,
    .attn_block = attn_block,
    .attn_query = attn_query,
    .attn_piece = attn_piece,
    .attn_merge = attn_merge,
    .layer_norm_task = layer_norm_task,
    .activate_task = activate_task,
    .full_attn_load = full_attn_load,
    .full_attn_block = full_attn_block,
};

#if defined(__clang__) && defined(HOST_TARGET)
#pragma clang attribute pop
#endif
