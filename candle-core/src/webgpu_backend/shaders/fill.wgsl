// dst = value() for all elements of the layout; other elements are unchanged. BY_ELEMENT: an invocation writes an element of the layout,
// otherwise a word of the span from the first to the last one.
// otherwise a word of the span from the first to the last one.

// Whether the layout covers element `at` of the buffer, by trying each dimension's stride: strides are tried from the largest down, which
// is unambiguous for the caller's layouts (views of a contiguous tensor).
fn covers(at: u32) -> bool {
  if (RANK == 0u) {
    return at >= p.dst_offset && at < p.dst_offset + p.len;
  }
  if (at < p.dst_offset) {
    return false;
  }
  var rest = at - p.dst_offset;
  var done: array<bool, 8>;
  for (var turn = 0u; turn < RANK; turn++) {
    var best = 0u;
    var stride = 0u;
    for (var d = 0u; d < RANK; d++) {
      let s = p.dst_stride[d / 4u][d % 4u];
      if (!done[d] && s >= stride) {
        best = d;
        stride = s;
      }
    }
    done[best] = true;
    if (stride > 0u) {
      let size = p.dims[best / 4u][best % 4u];
      rest -= min(rest / stride, size - 1u) * stride;
    }
  }
  return rest == 0u;
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let i = flat(workgroup, workgroups, local, WG);
  var lanes: array<dst_t, DST_LANES>;
  if (BY_ELEMENT) {
    if (i < p.len) {
      lanes[0] = value();
      dst_put(dst_offset(i), lanes);
    }
    return;
  }
  if (i >= p.words) {
    return;
  }
  let word = p.dst_offset / DST_LANES + i;
  var any = false;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    let at = word * DST_LANES + lane;
    if (covers(at)) {
      lanes[lane] = value();
      any = true;
    } else {
      lanes[lane] = dst_at(at);
    }
  }
  if (any) {
    dst_put(word, lanes);
  }
}
