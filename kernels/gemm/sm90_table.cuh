// The configurations, as rows of a macro `SM90` of the file that includes this. Sm90Config in src/gpu/kernels/sm90_config.rs mirrors the table; a test
// of sm90.rs reads these lines. What was measured of them, and of others that did not win: benches/record/2026-11-23-nvidia-h200/sm90-kernels.md.
// name, rows, columns, warpgroups, shared operand, stages, atom, depth, unrolled k-blocks, store, residents, shared memory
SM90(256x128, 256, 128, 2, SHARE_A, 4, 128, 1, 8, STORE_DIRECT, 1, 220288)
SM90(128x128, 128, 128, 2, SHARE_A, 6, 128, 1, 8, STORE_STAGED, 1, 220352)
SM90(128x192, 128, 192, 2, SHARE_NONE, 5, 64, 2, 4, STORE_STAGED, 1, 228768)
SM90(64x192, 64, 192, 1, SHARE_NONE, 6, 64, 2, 4, STORE_STAGED, 1, 212160)
SM90(64x128, 64, 128, 2, SHARE_NONE, 8, 64, 2, 4, STORE_STAGED, 1, 220416)
SM90(64x64, 64, 64, 1, SHARE_NONE, 12, 64, 4, 8, STORE_STAGED, 1, 212352)
SM90(64x64_two, 64, 64, 1, SHARE_NONE, 6, 64, 2, 4, STORE_STAGED, 2, 110784)
