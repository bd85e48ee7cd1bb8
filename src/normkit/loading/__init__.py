"""Models from the command line, and files: for the doctor and the surgeon alike.

target              package.module:attribute, or a folder
folder              a folder of Hugging Face's; offline: without the network; safetensors_files: its weights
writing             files that are there whole, or not at all
"""
