import sys, zipfile
folder, versions = sys.argv[1], int(sys.argv[2])
for version in range(versions):
    info = f"load_package-{version}.dist-info"
    with zipfile.ZipFile(f"{folder}/load_package-{version}-py3-none-any.whl", "w") as wheel:
        for number in range(20):
            wheel.writestr(f"load_package/part{number}.py", f"def f(x):\n    return x + {number}\n" * 20)
        wheel.writestr("load_package/__init__.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: load_package\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: load\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
