"""Published measurements of all-reduces that emu is held against, and one that calibrates it. Sizes in bytes."""

MIB = 1 << 20

# 8 P100 of a DGX-1, bus bandwidth in GB/s over NVLink and over PCIe alone.
# Source: Tartan (IISWC'18), scale-up microbenchmarks, NCCL 2 and NCCL 1. The software differs with the link.
E1 = """size,nvlink,pcie
1024,0.04,0.02
2048,0.08,0.05
4096,0.14,0.10
8192,0.29,0.18
16384,0.53,0.32
32768,0.80,0.60
65536,1.70,1.05
131072,3.09,1.58
262144,5.48,3.27
524288,10.47,4.71
1048576,17.65,5.90
2097152,27.29,6.71
4194304,37.66,7.25
8388608,45.75,7.64
16777216,53.29,7.40
33554432,57.93,7.41
67108864,61.39,7.68
134217728,64.11,7.69
268435456,62.51,7.69
536870912,62.67,7.69
1073741824,62.44,7.69
"""

# 2 to 8 A100 on NVSwitch, microseconds by MiB. Source: vTrain (MICRO'24), all-reduce tables, out of place.
E4 = """size,2,3,4,5,6,7,8
1,44.2,63.9,51.4,62.8,73.0,78.0,92.8
2,53.4,70.8,55.7,61.2,74.6,78.2,93.2
4,61.2,79.2,77.3,78.6,82.5,84.2,95.8
8,86.9,103.6,116.8,123.8,126.7,134.4,134.3
16,131.9,155.0,179.6,198.8,203.2,227.6,232.4
25,189.8,216.3,251.7,246.7,275.7,292.9,303.3
32,230.0,266.5,284.2,322.2,304.0,332.8,358.1
64,404.7,500.3,543.8,568.3,565.7,599.9,579.9
128,763.6,928.9,998.6,1066.7,1120.8,1147.4,1162.0
256,1455.8,1786.0,1929.0,2037.0,2115.9,2190.9,2162.3
512,2838.4,3466.8,3720.0,3935.8,4020.6,4106.0,4191.5
1024,5442.8,6757.1,7259.4,7653.2,7883.3,8112.8,8193.0
"""

# 8 H200, bus bandwidth in GB/s. Source: ml-engineering, network benchmarks.
E6 = """size,busbw
32768,1.44
65536,2.93
131072,5.73
262144,11.74
524288,23.94
1048576,39.93
2097152,64.53
4194304,107.16
8388608,155.53
16777216,219.89
33554432,275.84
67108864,346.51
134217728,401.93
268435456,436.15
536870912,450.29
1073741824,463.58
2147483648,469.17
4294967296,473.10
8589934592,477.45
17179869184,482.26
"""

# 4 to 8 H200 and B200 at 8 GiB, bus bandwidth in GB/s as chosen, and without in-switch reduction. Same source.
E6_GPUS = """gpu,gpus,chosen,without
hgx-h200,4,363.3,363.3
hgx-h200,5,414.2,364.4
hgx-h200,6,435.6,365.1
hgx-h200,7,460.0,365.7
hgx-h200,8,473.1,365.6
b200,4,673.2,673.8
b200,5,677.8,677.8
b200,6,778.2,677.8
b200,7,811.2,680.5
b200,8,838.0,682.2
"""

# Two GCP A3 Mega nodes, 16 H100, microseconds. Source: create-a3mega-ztan-fork, all-reduce out of place.
E10 = """size,time
1024,147.1
32768,155.2
65536,159.4
131072,159.3
262144,167.1
524288,174.2
1048576,203.2
2097152,254.0
4194304,364.6
8388608,571.9
16777216,977.6
33554432,1059.9
67108864,1261.6
134217728,1652.2
268435456,2360.9
536870912,3817.5
1073741824,6759.0
2147483648,12646
4294967296,24361
8589934592,47535
"""


# Two Azure NDm A100 v4 nodes, 16 A100 with a NIC of HDR InfiniBand each, microseconds. Not judged: it calibrates what
# launching a collective takes. Source: a published nccl-tests log of such nodes under Kubernetes, 2023, out of place.
SMALL = """size,time
1024,40.92
2048,42.87
4096,41.82
8192,46.31
16384,58.10
"""


def rows_of(table: str) -> list[dict[str, str]]:
    """Return the rows of a table by column."""
    head, *lines = table.strip().splitlines()
    return [dict(zip(head.split(","), line.split(","), strict=True)) for line in lines]
